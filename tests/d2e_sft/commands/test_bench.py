"""`d2e bench`: what is refused before anything is loaded."""

from __future__ import annotations

import pytest

from d2e_sft import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--contexts", "12,x"], "got '12,x'; expected lengths in tokens, for example 150,350,700"),
        (["decode", "--batches", "0"], "got '0'; expected lengths in tokens"),
        (["batches", "--workers", "-1"], "got '-1'; expected numbers of processes, for example 0,2"),
        (["batches", "--count", "10"], "10 is less than two micro-batches"),
        (["vllm", "--longest", "100"], "100 is less than --shortest"),
    ],
)
def test_a_wrong_number_is_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *words])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err.replace("\n", " ")

"""`d2e bench`: what is refused before anything is loaded."""

from __future__ import annotations

import pytest

from d2e_sft import cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--contexts", "12,x"], "got '12,x'; expected lengths in tokens, for example 150,350,700"),
        (["decode", "--batches", "0"], "got '0'; expected lengths in tokens"),
        (["decode", "--prompts", "160"], "--prompts 160: too short; expected more than 160 tokens"),
    ],
)
def test_a_wrong_number_is_explained(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", *words])
    assert said in capsys.readouterr().err.replace("\n", " ")

"""Messages are as wide as the terminal, and folded commands can be pasted."""

from __future__ import annotations

import pytest

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import WIDTH, folded, warn

LONG = "a-run-whose-name-is-longer-than-any-column-of-a-table-should-be"


def test_an_error_is_folded_between_words_and_its_command_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS")  # as if piped
    path = f"runs/{LONG}"
    error = UserError(f"{path}: " + "expected a run folder " * 6 + "here", f"d2e eval {path} --bench {path} --seed 3")
    assert folded(f"d2e: error: {error}").splitlines() == [
        f"d2e: error: {path}: expected a run",
        "    folder expected a run folder expected a run folder expected a run folder expected a run folder",
        "    expected a run folder here",
        f"  remedy: d2e eval {path} --bench \\",
        f"      {path} --seed 3",
    ]
    assert folded(f"  remedy: d2e eval {path}, or d2e predict {path} with rows").splitlines() == [
        f"  remedy: d2e eval {path}, or d2e",
        f"      predict {path} with rows",
    ]
    assert folded("x" * 120) == "x" * 120, "a word is not cut"
    warn("word " * 40)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= WIDTH

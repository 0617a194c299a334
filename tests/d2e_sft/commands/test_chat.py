"""`d2e chat` from a pipe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.command import call, output_of, refusal_of
from tests.tiny import save_tiny_model


def test_lines_from_a_pipe_are_answered_and_a_bad_one_is_an_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_model(tmp_path / "model", seed=3)
    (tmp_path / "story.txt").write_text("It rained.")
    line = ["chat", model, "--context", tmp_path / "story.txt", "--max-new-tokens", 4]
    monkeypatch.setattr("sys.stdin", io.StringIO("Why was it wet?\n\n/context"))
    plain, debiased, shown = output_of(*line).splitlines()
    assert plain.startswith("plain     ")
    assert debiased.startswith("debiased  ")
    assert shown == "It rained."
    monkeypatch.setattr("sys.stdin", io.StringIO("/alhpa 1\n/context\n"))
    said = call(*line)
    assert (said.status, said.out) == (1, "It rained.\n")
    assert "/alhpa: no such command" in said.err
    assert "1 lines failed" in said.err


def test_a_context_that_cannot_be_read_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").touch()
    messages = {"no.txt": "does not exist", "latin.txt": "not a text file in UTF-8", "empty.txt": "empty"}
    for name, message in messages.items():
        assert message in refusal_of("chat", tmp_path / "no-model", "--context", tmp_path / name)

"""`d2e data boxes`: the archive that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_the_command_writes_an_archive_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from d2e_sft.cli import run
    from d2e_sft.util.encrypted_zip import member_names, read_encrypted

    run(["data", "boxes", str(tmp_path / "b.zip"), "--scenarios", "20"])
    assert "train.jsonl: 9 scenarios, 819 questions" in capsys.readouterr().out
    assert member_names(tmp_path / "b.zip") == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    run(["data", "boxes", str(tmp_path / "b"), "--scenarios", "20", "--plain"])
    assert (tmp_path / "b" / "dev.jsonl").read_text() == read_encrypted(tmp_path / "b.zip", "dev.jsonl")

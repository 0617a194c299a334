"""`d2e data boxes`: the archive that it writes."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.encrypted_zip import member_names, read_encrypted
from tests.command import output_of


def test_the_command_writes_an_archive_or_plain_files(tmp_path: Path) -> None:
    printed = output_of("data", "boxes", tmp_path / "b.zip", "--scenarios", 20)
    assert "train.jsonl: 9 scenarios, 819 questions" in printed
    assert member_names(tmp_path / "b.zip") == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    output_of("data", "boxes", tmp_path / "b", "--scenarios", 20, "--plain")
    assert (tmp_path / "b" / "dev.jsonl").read_text() == read_encrypted(tmp_path / "b.zip", "dev.jsonl")

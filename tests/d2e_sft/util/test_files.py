"""Files that are written in one piece or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.files import replacing, write_json, write_whole


def test_a_file_is_replaced_in_one_piece(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.txt"
    write_whole(target, "one\n")
    with replacing(target) as partial:
        partial.write_text("two\n", encoding="utf-8")
        assert target.read_text(encoding="utf-8") == "one\n"
    assert target.read_text(encoding="utf-8") == "two\n"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_whole(target, "one\n")
    with pytest.raises(FileNotFoundError), replacing(target) as partial:
        partial.write_text("tw", encoding="utf-8") and (tmp_path / "missing").read_text(encoding="utf-8")
    assert target.read_text(encoding="utf-8") == "one\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_json_keeps_letters_as_they_are(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "D²E"})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "name": "D²E"\n}\n'

"""JSON lines, what is not sound JSON, and which file of a folder is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.files import file_in, json_lines, read_json, read_json_lines
from tests.eval.systems.files import save


def test_lines_are_read_back_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"a": "ä\u2028b"}, {"a": None}]
    path.write_text(json_lines(rows) + "\n", encoding="utf-8")
    assert list(read_json_lines(path)) == [(f"{path}, line 1", rows[0]), (f"{path}, line 2", rows[1])]


def test_values_are_checked_with_their_key(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('{"a": [3, "x"]}')
    with pytest.raises(UserError, match=r"file\.json: a\.1: got 'x'; Input should be a valid integer"):
        read_json(path, dict[str, list[int]])
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not sound JSON"):
        read_json(path)


NAMES = ("best.json", "good.json")


def find(path: Path) -> Path:
    return file_in(path, NAMES, "--gold", "gold")


def test_a_file_is_itself_and_a_folder_the_best_name_in_it_or_below(tmp_path: Path) -> None:
    other = save(tmp_path / "other.json", "")
    assert find(other) == other
    deep = save(tmp_path / "v2.0" / "mini" / "good.json", "")
    assert find(tmp_path) == deep
    shallow = save(tmp_path / "v2.0" / "good.json", "")
    assert find(tmp_path) == shallow, "what lies less deep"
    best = save(tmp_path / "a" / "b" / "c" / "best.json", "")
    assert find(tmp_path) == best, "a better name before a nearer place"


def test_what_is_not_there_or_there_twice_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--gold .*none: no such file or folder\n  remedy: expected gold: best.json"):
        find(tmp_path / "none")
    save(tmp_path / "readme.md", "")
    save(tmp_path / "one" / "x", "")
    with pytest.raises(UserError, match=r"holds no best.json or good.json; there is one/, readme.md"):
        find(tmp_path)
    save(tmp_path / "one" / "good.json", "")
    save(tmp_path / "two" / "good.json", "")
    with pytest.raises(UserError, match=r"has 2 files good.json: one/good.json, two/good.json"):
        find(tmp_path)

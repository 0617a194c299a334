"""JSON lines, and what is not sound JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.json_file import json_lines, read_json, read_json_lines


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

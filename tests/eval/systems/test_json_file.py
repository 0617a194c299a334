"""Official JSON files: what is wrong in one is named with file, place and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.json_file import Node, expect_text, json_lines, read_json, read_json_lines


def test_lines_are_written_and_read_back_with_their_places(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"a": "ä\u2028b"}, {"a": None}]
    path.write_text(json_lines(rows) + "\n", encoding="utf-8")
    assert list(read_json_lines(path)) == [(f"{path}, line 1", rows[0]), (f"{path}, line 2", rows[1])]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1, column 2"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("[" * 100_000, "not sound JSON"),
    ],
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        read_json(path)


def test_a_missing_field_says_which_there_are() -> None:
    with pytest.raises(UserError, match=r"here: b: missing; expected text \(there is a\)"):
        expect_text({"a": 1}, "b", "here")


def test_a_value_knows_its_place() -> None:
    node = Node({"a": [{"b": "3"}, {"b": 4.5}]}, Path("f.json"))
    assert node["a"].items()[0]["b"].integer() == 3
    with pytest.raises(UserError, match=r"f\.json, a\[1\]\.b: got 4\.5; expected a whole number"):
        node["a"].items()[1]["b"].integer()
    with pytest.raises(UserError, match=r"f\.json, a: got .*expected an object"):
        node["a"].members()
    assert node.unwrapped("x") is node

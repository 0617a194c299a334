"""Damage of raw files is named for what it is, at its place, and costs no more than it must."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_bad_rows
from d2e_sft.util.errors import UserError
from data_builders.raw.reader import BadRows, RawInput
from data_builders.raw.row import Row

GOOD = '{"a": 1}\n'


def _input(tmp_path: Path, content: str | bytes, *, skip: bool = False) -> RawInput:
    path = tmp_path / "rows"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return RawInput("any", "test", "rows", path, BadRows(skip=skip))


def _error(raw: RawInput) -> UserError:
    with pytest.raises(UserError) as error:
        list(raw.json_lines())
    return error.value


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("rows", GOOD)
    return out.getvalue()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (b"<!-- by nginx -->\n<html>nf</html>", "a web page (HTML)", "save the raw file"),
        (b"<!-- " + b"x" * 600, "a web page (HTML)", "save the raw file"),
        (b"<head><title>502</title></head>", "a web page (HTML)", "save the raw file"),
        (b'<?xml version="1.0"?>\n<!DOCTYPE html><html>', "a web page (HTML)", "save the raw file"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied', "a server's answer in XML", "fetch it again"),
        (b"<Error><Code>NoSuchKey", "a server's error message (XML)", "fetch it again"),
        (b"404: Not Found", "a server's error message", "fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid 4d", "a Git LFS pointer", "git lfs pull"),
        (_zip(), "a zip archive", "unpack it"),
        (GOOD.encode("utf-16"), "UTF-16 text", "save it as UTF-8"),
        (GOOD.encode("utf-16-be"), "UTF-16 text", "save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_data_is_named_and_got_again(
    tmp_path: Path, content: bytes, what: str, remedy: str, pack: type[bytes]
) -> None:
    error = _error(_input(tmp_path, pack(content), skip=True))
    assert f"rows: holds {what}" in error.message
    assert "it begins with '" in error.message
    assert remedy in str(error.remedy)
    assert "--skip-bad" not in str(error.remedy)


@pytest.mark.parametrize(
    ("content", "line", "damaged"),
    [
        ("Moved to /new\n" + GOOD, 1, True),
        (GOOD + '{"a": "cut', 2, True),
        (GOOD + '{"a": "mis-edited\n' + GOOD, 2, False),
        (GOOD[:-1] + "\r" + GOOD[:-1] + "\r", 1, True),
        ("[" * 100_000, 1, True),
        (b"caf\xe9\n" + GOOD.encode(), 1, True),
        (GOOD.encode() + b"caf\xe9\n" + GOOD.encode(), 2, False),
    ],
)
def test_a_first_or_unfinished_last_line_tells_of_a_damaged_file(
    tmp_path: Path, content: str | bytes, line: int, damaged: bool
) -> None:
    error = _error(_input(tmp_path, content))
    assert f"rows, line {line}: " in error.message
    assert ("fetch it again" in str(error.remedy)) == damaged
    assert "--skip-bad" in str(error.remedy)


def _rows(rows: Iterable[Row]) -> list[tuple[int, dict[str, object]]]:
    return [(row.number, row.fields) for row in rows]


def test_a_line_that_is_no_json_is_shown_with_one_number_of_a_line(tmp_path: Path) -> None:
    message = _error(_input(tmp_path, GOOD + '{"a" 1, "b": "' + "x" * 100 + '"}\n')).message
    assert message.endswith(
        """rows, line 2: not a JSON object (column 6: Expecting ':' delimiter); """
        f"""it begins with '{{"a" 1, "b": "{"x" * 46}'"""
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"b": 1, "b": 2}', "the key 'b' is given twice"),
        ('{"b": {"c": 1, "c": 1}}', "the key 'c' is given twice"),
        ('{"b": NaN}', "NaN is no JSON value"),
        ('{"b": [-Infinity]}', "-Infinity is no JSON value"),
        ('{"b": ' + "9" * 6_000 + "}", "a number has 6,000 digits"),
        ('{"b": {"c": ["\\ud800"]}}', "b.c.0: got '\\ud800'; expected text without lone surrogates"),
        ('{"\\udc00": 1}', "a key of the row: got '\\udc00'; expected text without lone surrogates"),
        ('{"b": "x\\u0000y"}', "b: got 'x\\x00y'; expected text without NUL bytes"),
        ("[1]", "got [1]; expected a JSON object"),
    ],
)
def test_a_bad_value_costs_its_row_in_lines_and_in_arrays(tmp_path: Path, line: str, problem: str) -> None:
    lines = _input(tmp_path, f"{GOOD}{line}\n{GOOD}", skip=True)
    assert [row.number for row in lines.json_lines()] == [1, 3]
    array = _input(tmp_path, f"[{GOOD},{line},{GOOD}]", skip=True)
    assert [row.number for row in array.json_items()] == [1, 3]
    for raw, unit in ((lines, "line"), (array, "item")):
        (entry,) = raw.bad.entries
        assert entry[unit] == 2
        assert problem in entry["error"]


def test_what_stands_before_the_wanted_array_may_not_nest_too_deeply(tmp_path: Path) -> None:
    raw = _input(tmp_path, '{"x": ' + "[" * 100_000)
    with pytest.raises(UserError, match="rows, line 1: the JSON object nests too deeply"):
        list(raw.json_items("data"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [("a\rb", "a carriage return at column 2"), ("a\0b", "a NUL byte at column 2")],
)
def test_a_line_with_a_lost_line_end_or_a_nul_is_bad(tmp_path: Path, line: str, problem: str) -> None:
    raw = _input(tmp_path, f"one\r\n{line}\nthree", skip=True)
    assert [(line.number, line.text) for line in raw.lines()] == [(1, "one"), (3, "three")]
    assert raw.bad.entries[0]["error"].startswith(problem)


def test_byte_order_marks_at_the_start_of_lines_are_dropped(tmp_path: Path) -> None:
    mark = codecs.BOM_UTF8
    raw = _input(tmp_path, mark + mark + GOOD.encode() + mark + GOOD.encode())
    assert [row.number for row in raw.json_lines()] == [1, 2]
    assert _rows(_input(tmp_path, mark + mark + b"[{}]").json_items()) == [(1, {})]


def test_a_huge_csv_cell_costs_its_row_and_names_its_column(tmp_path: Path) -> None:
    raw = _input(tmp_path, f"id,text\n1,a\n2,{'x' * 140_000}\n3,c\n", skip=True)
    assert [row.number for row in raw.csv_rows(("id", "text"))] == [2, 4]
    assert raw.bad.entries[0]["error"] == "text: got 140,000 characters; expected at most 131,072 in a cell"


def test_a_long_line_in_place_of_a_csv_header_is_cut(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        list(_input(tmp_path, "x" * 5_000 + "\n").csv_rows(("id",)))
    assert "column 'id' is missing; found 'xxx" in error.value.message
    assert len(error.value.message) < 400 + len(str(tmp_path))


def test_a_huge_value_is_cut_in_the_message_and_kept_once_in_the_row(tmp_path: Path) -> None:
    row = [["word " * 100_000]]
    raw = _input(tmp_path, json.dumps(row) + "\n", skip=True)
    assert not list(raw.json_lines())
    (entry,) = raw.bad.entries
    assert len(entry["error"]) < 400
    assert "more characters" in entry["error"]
    assert entry["row"] == row


def _circle() -> list[object]:
    circle: list[object] = []
    circle.append(circle)
    return circle


def _deep() -> list[object]:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "make",
    [
        lambda: "\ud800",
        lambda: {"\udc00": "ü"},
        _circle,
        _deep,
        lambda: {("a", 1): 2},
        lambda: 10**5000,
        lambda: b"\xff",
    ],
)
def test_any_bad_row_can_be_written(tmp_path: Path, make: Callable[[], object]) -> None:
    row = make()
    target = tmp_path / "bad_rows.jsonl"
    write_bad_rows([{"file": "any/rows", "line": 1, "error": "ü \ud800", "row": row}, {"row": "next"}], target)
    first, second = (json.loads(line) for line in target.read_text(encoding="utf-8").splitlines())
    assert first["error"] == "ü \ud800"
    assert second == {"row": "next"}


def test_a_surrogate_is_kept_in_the_side_file(tmp_path: Path) -> None:
    target = tmp_path / "bad_rows.jsonl"
    write_bad_rows([{"row": {"a": "x\ud800"}}], target)
    assert json.loads(target.read_text(encoding="utf-8")) == {"row": {"a": "x\ud800"}}

"""Damage of raw files is named for what it is, at its place, and costs no more than it must."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import zipfile
from collections.abc import Iterable
from functools import reduce
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
    ("content", "line"),
    [
        ("Moved to /new\n" + GOOD, 1),
        (GOOD + '{"a": "cut', 2),
        (GOOD[:-1] + "\r" + GOOD[:-1] + "\r", 1),
        ("[" * 100_000, 1),
        (GOOD.encode() + b"caf\xe9\n" + GOOD.encode(), 2),
    ],
)
def test_a_bad_line_is_an_error_with_its_number_and_both_remedies(
    tmp_path: Path, content: str | bytes, line: int
) -> None:
    error = _error(_input(tmp_path, content))
    assert f"rows, line {line}: " in error.message
    assert "fetch it again), or add --skip-bad" in str(error.remedy)


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
        ('{"b": NaN}', "NaN is not a JSON value"),
        ('{"b": [-Infinity]}', "b.0: -Infinity is not a JSON value"),
        ('{"b": ' + "9" * 6_000 + "}", "a number has 6,000 digits"),
        ('{"b": {"c": ["\\ud800"]}}', "b.c.0: got '\\ud800'; expected text without lone surrogates"),
        ('{"\\udc00": 1}', "a key of the row: got '\\udc00'; expected text without lone surrogates"),
        ('{"b": "x\\u0000y"}', "b: got 'x\\x00y'; expected text without NUL bytes"),
        ("[1]", "got [1]; expected a JSON object"),
        ("NaN", "NaN is not a JSON value"),
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


def test_a_long_csv_cell_is_read(tmp_path: Path) -> None:
    raw = _input(tmp_path, f"id,text\n1,a\n2,{'x' * 140_000}\n3,c\n")
    assert [len(row.text("text")) for row in raw.csv_rows(("id", "text"))] == [1, 140_000, 1]


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


@pytest.mark.parametrize("row", ["\ud800", {("a", 1): b"\xff"}, reduce(lambda deep, _: [deep], range(100_000), [])])
def test_any_bad_row_can_be_written(tmp_path: Path, row: object) -> None:
    target = tmp_path / "bad_rows.jsonl"
    write_bad_rows([{"file": "any/rows", "error": "ü \ud800", "row": row}, {"row": {"a": "x\ud800"}}], target)
    first, second = (json.loads(line) for line in target.read_text(encoding="utf-8").splitlines())
    assert first["error"] == "ü \ud800"
    assert second == {"row": {"a": "x\ud800"}}

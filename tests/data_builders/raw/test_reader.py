"""What the readers of raw files make of good and of broken files: gzip, JSON arrays, CSV."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.reader import BadRows, Draft, RawInput
from data_builders.raw.row import Row

COLUMNS = ("id", "text")


def _input(tmp_path: Path, content: str | bytes, *, skip: bool = False) -> RawInput:
    path = tmp_path / "rows"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return RawInput("any", "test", "rows", path, BadRows(skip=skip))


def _rows(rows: Iterable[Row]) -> list[tuple[int, dict[str, object]]]:
    return [(row.number, row.fields) for row in rows]


def test_gzip_is_unpacked_whatever_the_name(tmp_path: Path) -> None:
    assert _rows(_input(tmp_path, gzip.compress(b'{"a": 1}\n')).json_lines()) == [(1, {"a": 1})]


def test_gzip_that_ends_early_names_file_and_line(tmp_path: Path) -> None:
    lines = "".join(f'{{"a": {number}}}\n' for number in range(20_000)).encode()
    with pytest.raises(UserError, match=r"rows, line \d+: the gzip data ends or breaks here"):
        list(_input(tmp_path, gzip.compress(lines)[:-2_000]).json_lines())


def test_gzip_that_ends_in_its_header_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rows, line 1: the gzip data ends or breaks here"):
        list(_input(tmp_path, gzip.compress(b"{}")[:5]).json_lines())


def test_a_packed_web_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds a web page"):
        list(_input(tmp_path, gzip.compress(b"<!DOCTYPE html>")).json_lines())


def test_items_of_an_array_are_counted(tmp_path: Path) -> None:
    raw = _input(tmp_path, '[{"a": 1}, 7,\n {"a": 2}]', skip=True)
    assert _rows(raw.json_items()) == [(1, {"a": 1}), (3, {"a": 2})]
    assert raw.bad.entries[0]["item"] == 2


def test_an_array_may_number_its_items_by_lines(tmp_path: Path) -> None:
    raw = _input(tmp_path, '[\n{"a": "x,\\n]"}, {"a": 2},\n\n 7,\n{"a": 3}]', skip=True)
    assert [row.number for row in raw.json_array()] == [2, 2, 5]
    assert raw.bad.entries[0]["line"] == 4


def test_an_array_is_found_under_its_key(tmp_path: Path) -> None:
    raw = _input(tmp_path, '{"version": "[1]", "data": [{"a": 1}], "after": 2}')
    assert _rows(raw.json_items("data")) == [(1, {"a": 1})]


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        ('{"a": 1}', "", r"line 1: got \{'a': 1\}; expected a JSON array"),
        ('{"version": 1, "rows": []}', "data", "line 1: the JSON object has version, rows; expected an array under"),
        ("{}", "data", "line 1: the JSON object has no key; expected an array under the key 'data'"),
        ('{"data": {}}', "data", "line 1: the JSON object has data; expected an array under the key 'data'"),
        ("[]", "data", r"line 1: got \[\]; expected a JSON object"),
        ('{"version": ', "data", "line 1: the JSON ends or breaks here"),
        ('{"data": [{"a": 1},\n{"a"', "data", "line 2: the JSON ends or breaks here"),
        ('[{"a": 1}\n{"a": 2}]', "", r"line 2: the JSON ends or breaks here \(column 1: Expecting ',' delimiter\)"),
        (b'[{"a": 1},\n{"a": "\xff"}]', "", "line 2: not UTF-8 text"),
        ("[" * 100_000, "", "line 1: the JSON nests too deeply"),
        (" \n", "", "the file is empty"),
        ("<html>", "", "holds a web page"),
    ],
)
def test_a_broken_array_names_file_and_line(tmp_path: Path, content: str | bytes, key: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(_input(tmp_path, content, skip=True).json_items(key))


def test_csv_rows_know_their_first_line(tmp_path: Path) -> None:
    text = '\ufeffid,other,text\r\n1,x,"two\nlines, ""quoted"""\r\n\r\n2,y,plain\r\n'
    assert _rows(_input(tmp_path, text).csv_rows(COLUMNS)) == [
        (2, {"id": "1", "text": 'two\nlines, "quoted"'}),
        (5, {"id": "2", "text": "plain"}),
    ]


def test_csv_keeps_unicode_line_separators_in_a_text(tmp_path: Path) -> None:
    assert _rows(_input(tmp_path, "id,text\n1,a\u2028b\x0bc\n").csv_rows(COLUMNS)) == [
        (2, {"id": "1", "text": "a\u2028b\x0bc"})
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,txt\n1,a\n", "line 1: column 'text' is missing; found 'id', 'txt'"),
        ("id,text,id\n1,a,2\n", "line 1: column 'id' is there more than once"),
        ('id,text\n1,a\n2,"never closed\n', "line 3: the CSV row that begins here breaks"),
        ('id,text\n1,"a"b\n', "line 2: the CSV row that begins here breaks"),
        (b"id,text\n1,a\n2,caf\xe9\n", "line 3: not UTF-8 text"),
        ("", "the file is empty"),
        ("<!doctype html><p>", "holds a web page"),
    ],
)
def test_broken_csv_names_file_and_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(_input(tmp_path, content, skip=True).csv_rows(COLUMNS))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2,a,b", "line 3: got 3 columns; expected 2: id, text"),
        ("2", "line 3: got 1 columns; expected 2: id, text"),
        ("2,a\0b", r"line 3: text: got 'a\\x00b'; expected text without NUL bytes"),
    ],
)
def test_a_bad_csv_row_can_be_skipped(tmp_path: Path, row: str, message: str) -> None:
    content = f"id,text\n1,a\n{row}\n3,c\n"
    with pytest.raises(UserError, match=message):
        list(_input(tmp_path, content).csv_rows(COLUMNS))
    raw = _input(tmp_path, content, skip=True)
    assert [row.number for row in raw.csv_rows(COLUMNS)] == [2, 4]
    assert raw.bad.entries[0]["line"] == 3


def test_a_line_that_nests_too_deeply_can_be_skipped(tmp_path: Path) -> None:
    raw = _input(tmp_path, "[" * 100_000 + '\n{"a": 1}\n', skip=True)
    assert _rows(raw.json_lines()) == [(2, {"a": 1})]


def test_a_sample_has_decoded_texts_and_the_meta_of_the_file(tmp_path: Path) -> None:
    draft = Draft(
        number=1,
        relation="causal",
        context="Ash &amp; Co. left.\x07",
        question="Why&#63;",
        answers=["&quot;it&quot;", 'a ""deal""'],
        options=[],
        habit=["&lt;none&gt;"],
        meta={"title": "Ash &amp; Co."},
    )
    sample = _input(tmp_path, "{}").sample(draft)
    assert (sample.context, sample.question, sample.habit) == ("Ash & Co. left.", "Why?", ["<none>"])
    assert sample.answers == ['"it"', 'a "deal"']
    assert sample.meta["title"] == "Ash &amp; Co."
    assert sample.meta["decoded"] == ["HTML entities", "control characters", "doubled quotes"]

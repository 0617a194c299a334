"""Raw files and rows are read whatever their form, and damage is reported with its place, field and value."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from d2e_sft.util.errors import UserError
from data_builders.raw.characters import decode_characters
from data_builders.raw.reader import BadRows, RawInput
from data_builders.raw.row import BadRowError, Draft, Row, clean

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
GOOD = '{"a": 1}\n'
COLUMNS = ("id", "text")


def _input(tmp_path: Path, content: str | bytes, *, skip: bool = False) -> RawInput:
    path = tmp_path / "rows"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return RawInput("any", "test", "rows", path, BadRows(skip=skip))


def _error(raw: RawInput) -> UserError:
    with pytest.raises(UserError) as error:
        list(raw.json_lines())
    return error.value


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "what", "remedy"),
    [
        (b"<!-- by nginx -->\n<html>nf</html>", "a web page (HTML)", "save the raw file"),
        (b"<!-- " + b"x" * 600, "a web page (HTML)", "save the raw file"),
        (b'<?xml version="1.0"?>\n<!DOCTYPE html><html>', "a web page (HTML)", "save the raw file"),
        (b'<?xml version="1.0"?>\n<Error><Code>AccessDenied', "a server's answer in XML", "fetch it again"),
        (b"<Error><Code>NoSuchKey", "a server's error message (XML)", "fetch it again"),
        (b"404: Not Found", "a server's error message", "fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid 4d", "a Git LFS pointer", "git lfs pull"),
        (b"PK\x03\x04" + b"x" * 40, "a zip archive", "unpack it"),
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
def test_a_bad_line_has_its_number_and_both_remedies(tmp_path: Path, content: str | bytes, line: int) -> None:
    error = _error(_input(tmp_path, content))
    assert f"rows, line {line}: " in error.message
    assert "fetch it again), or add --skip-bad" in str(error.remedy)


def _rows(rows: Iterable[Row]) -> list[tuple[int, dict[str, object]]]:
    return [(row.number, row.fields) for row in rows]


@pytest.mark.parametrize(("line", "problem"), CASES["bad values"])
def test_a_bad_value_costs_its_row_in_lines_and_in_arrays(tmp_path: Path, line: str, problem: str) -> None:
    lines = _input(tmp_path, f"{GOOD}{line}\n{GOOD}", skip=True)
    assert [row.number for row in lines.json_lines()] == [1, 3]
    array = _input(tmp_path, f"[{GOOD},{line},{GOOD}]", skip=True)
    assert [row.number for row in array.json_items()] == [1, 3]
    for raw, unit in ((lines, "line"), (array, "item")):
        (entry,) = raw.bad.entries
        assert entry[unit] == 2
        assert problem in entry["error"]


def test_a_line_with_a_lost_line_end_or_a_nul_is_bad(tmp_path: Path) -> None:
    raw = _input(tmp_path, "one\r\na\rb\na\0b\nfour", skip=True)
    assert [(line.number, line.text) for line in raw.lines()] == [(1, "one"), (4, "four")]
    problems = ["a carriage return at column 2", "a NUL byte at column 2"]
    assert [entry["error"].partition(";")[0] for entry in raw.bad.entries] == problems


def test_byte_order_marks_at_the_start_of_lines_are_dropped(tmp_path: Path) -> None:
    assert [row.number for row in _input(tmp_path, f"\ufeff\ufeff{GOOD}\ufeff{GOOD}").json_lines()] == [1, 2]
    assert _rows(_input(tmp_path, "\ufeff\ufeff[{}]").json_items()) == [(1, {})]


def test_gzip_is_unpacked_whatever_the_name_and_its_end_has_a_line(tmp_path: Path) -> None:
    lines = "".join(f'{{"a": {number}}}\n' for number in range(20_000)).encode()
    packed = gzip.compress(lines)
    assert [row.fields["a"] for row in _input(tmp_path, packed).json_lines()] == list(range(20_000))
    for cut, line in ((packed[:-2_000], r"\d+"), (packed[:5], "1")):
        with pytest.raises(UserError, match=f"rows, line {line}: the gzip data ends or breaks here"):
            list(_input(tmp_path, cut).json_lines())


def test_items_of_an_array_are_numbered_by_lines_or_found_under_a_key(tmp_path: Path) -> None:
    raw = _input(tmp_path, '[\n{"a": "x,\\n]"}, {"a": 2},\n\n 7,\n{"a": 3}]', skip=True)
    assert [row.number for row in raw.json_array()] == [2, 2, 5]
    assert raw.bad.entries[0]["line"] == 4
    raw = _input(tmp_path, '{"version": "[1]", "data": [{"a": 1}], "after": 2}')
    assert _rows(raw.json_items("data")) == [(1, {"a": 1})]


@pytest.mark.parametrize(
    ("content", "form", "message"),
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
        ("id,txt\n1,a\n", "csv", "line 1: column 'text' is missing; found 'id', 'txt'"),
        ("x" * 5_000 + "\n", "csv", r"line 1: column 'id' is missing; found '.* more characters"),
        ("id,text,id\n1,a,2\n", "csv", "line 1: column 'id' is there more than once"),
        ('id,text\n1,a\n2,"never closed\n', "csv", "line 3: the CSV row that begins here breaks"),
        ('id,text\n1,"a"b\n', "csv", "line 2: the CSV row that begins here breaks"),
        (b"id,text\n1,a\n2,caf\xe9\n", "csv", "line 3: not UTF-8 text"),
    ],
)
def test_a_broken_array_or_table_has_its_line(tmp_path: Path, content: str | bytes, form: str, message: str) -> None:
    raw = _input(tmp_path, content, skip=True)
    with pytest.raises(UserError, match=message):
        list(raw.csv_rows(COLUMNS) if form == "csv" else raw.json_items(form))


def test_csv_rows_know_their_first_line_and_keep_their_texts(tmp_path: Path) -> None:
    long = "a\u2028b\x0bc" * 40_000  # longer than a cell may be by default
    text = f'\ufeffid,other,text\r\n1,x,"two\nlines, ""quoted"""\r\n\r\n2,y,{long}\r\n'
    assert _rows(_input(tmp_path, text).csv_rows(COLUMNS)) == [
        (2, {"id": "1", "text": 'two\nlines, "quoted"'}),
        (5, {"id": "2", "text": long}),
    ]


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


INVISIBLE = ("", " \u00a0", "\u200b", "\ufeff", "\u200b \u2060\u200d", "\x07")


def test_byte_order_marks_are_dropped_and_zero_width_characters_between_others_stay() -> None:
    assert clean(" \ufeffAnn\ufeff ran. ") == "Ann ran."
    assert Row(1, {"a": "\u0646\u200c\u0627"}).text("a") == "\u0646\u200c\u0627"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"a": text}, r"^a: got '.*'; expected text that is not empty$") for text in INVISIBLE),
        ({"b": 1}, r"^a: missing; expected text \(the row has b\)$"),
    ],
)
def test_a_text_that_is_missing_or_invisible_is_an_error(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadRowError, match=message):
        Row(1, fields).text("a")


@pytest.mark.parametrize(("raw", "meant", "what"), [*CASES["decoded"], *((text, text, "") for text in CASES["meant"])])
def test_what_was_encoded_is_decoded_and_the_rest_stays(raw: str, meant: str, what: str) -> None:
    assert decode_characters(raw) == (meant, {what} - {""})

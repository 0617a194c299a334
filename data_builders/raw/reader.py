"""Read a raw file (lines, JSON lines, a JSON array or object, CSV, Parquet; gzip or not) as typed rows.

Errors name file, line, field and value. A `BadRowError` concerns one row: `RawInput` raises it as a `UserError` or, if
bad rows are skipped, records the row. An error of the whole file cannot be skipped.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from d2e_sft.data.cells import has_floats, stored
from d2e_sft.data.conversation import prompt_turns
from d2e_sft.data.sample import EventSample, Format, Split
from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from d2e_sft.util.files import most_unpacked
from data_builders.raw.characters import DECODED, QUOTING, decode_all_texts
from data_builders.raw.row import BYTE_ORDER_MARK, BadRowError, Draft, Flaw, Row, check_values, cut, decode_json, shown

csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters refuses long passages
_GZIP_MARK = b"\x1f\x8b"
_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_AS_UTF8 = "save it as UTF-8 text"
_MARKUP_COMMENTS = re.compile(rb"\A(\s|<!--.*?(-->|\Z))*", re.DOTALL)
_BETWEEN_ITEMS = re.compile(r"[\s,]*")
_SAVE_RAW = "save the raw file, not the page that shows it"
_FETCH_AGAIN = "the server refused or did not know the file when it was fetched: fetch it again"
# (start of the file in lower case, what the file is, the remedy)
_NOT_DATA = (
    *((mark, "a web page (HTML)", _SAVE_RAW) for mark in (b"<!doctype html", b"<html", b"<head", b"<body")),
    (b"<?xml", "a server's answer in XML", _FETCH_AGAIN),
    (b"<error>", "a server's error message (XML)", _FETCH_AGAIN),
    (b"404: not found", "a server's error message", _FETCH_AGAIN),
    (b"version https://git-lfs", "a Git LFS pointer", "get the file itself with 'git lfs pull'"),
    (b"pk\x03\x04", "a zip archive", "unpack it and give the file inside"),
    (_GZIP_MARK, "a gzip file within a gzip file", "unpack it once and give that file"),
)


@dataclass
class BadRows:
    """What happens to bad rows: the first one is an error, or all are collected in `entries`."""

    skip: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)

    def count(self, dataset: str, split: str) -> int:
        return sum(entry["dataset"] == dataset and entry["split"] == split for entry in self.entries)


@dataclass(frozen=True)
class Line:
    """A line that is not blank, without its line end and leading byte order marks."""

    number: int
    text: str


Parsed = TypeVar("Parsed")
AnyRow = TypeVar("AnyRow", bound=Any)  # has a number


@dataclass
class RawInput:
    """One raw file that is read for one split.

    Attributes:
        name: The file's path inside the dataset's folder, with `/`; safe to write into outputs.
        path: Its path on this machine; only for messages.
        wording: Prompt and system message of chat rows.
        unit: Unit of row numbers. A JSON array may be one line, so its items are counted.
        folder: The dataset's folder, if it differs from its name.
        own_spec: The file that describes a user's own data; messages name it.
        suggest: Returns a likely `columns: {…}` for the description of own data from the file's columns.
        numbers: Numbers of the lines read so far that are not blank, bad ones included.
    """

    dataset: str
    split: Split
    name: str
    path: Path
    bad: BadRows
    format: Format = "qa"
    wording: tuple[str, str] = ("", "")
    licence: str = ""
    unit: Literal["line", "item"] = "line"
    folder: str = ""
    own_spec: str = ""
    suggest: Callable[[Sequence[str]], str] | None = None
    numbers: list[int] = field(default_factory=list)

    def lines(self) -> Iterator[Line]:
        """Yield each line that is not blank; bad ones are not UTF-8, or have a NUL or a carriage return inside."""
        # As bytes, since only "\n" ends a row and a wrong encoding needs its line number.
        for number, raw in enumerate(io.BytesIO(read_bytes(self.path, is_own=bool(self.own_spec))), start=1):
            if not raw.strip():
                continue
            self.numbers.append(number)
            text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
            line = Line(number, text.lstrip(BYTE_ORDER_MARK))
            if problem := _problem_of_line(raw, line.text):
                self.reject(number, line.text, problem)
            else:
                yield line

    def json_lines(self) -> Iterator[Row]:
        for line in self.lines():
            try:
                value = decode_json(line.text)
            except (json.JSONDecodeError, RecursionError) as error:
                why = f"column {error.colno:,}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
                self.reject(line.number, line.text, f"not a JSON object ({why}); it begins with {line.text[:60]!r}")
            else:
                yield from self._checked([(line.number, value)])

    def json_array(self) -> Iterator[Row]:
        """Yield the objects of a file that is one JSON array, numbered by the line in which each begins."""
        text, items = self._json(list)
        yield from self._checked(zip(_lines_of_items(text), items, strict=True))

    def json_items(self, key: str = "") -> Iterator[Row]:
        """Yield the objects of a JSON array, or of the array under `key` in a JSON object, counted from 1."""
        self.unit = "item"
        _, content = self._json(dict if key else list)
        if key:
            if not isinstance(content.get(key), list):
                keys = cut(", ".join(map(str, content)) or "no key")
                raise self._error(f", line 1: the JSON object has {keys}; expected an array under the key {key!r}")
            content = content[key]
        yield from self._checked(enumerate(content, start=1))

    def json_members(self) -> Iterator[Row]:
        """Yield the objects in a JSON object, counted from 1, each with its key."""
        self.unit = "item"
        _, content = self._json(dict)
        yield from self._checked(enumerate(content.values(), start=1), list(content))

    def csv_rows(self, columns: Sequence[str], *, optional: Sequence[str] = (), delimiter: str = ",") -> Iterator[Row]:
        """Yield the rows of a CSV file with a header, by their first lines; `optional` columns are read if present."""
        text, header, start = self._text(), list[str](), 1
        # newline="\n" keeps carriage returns and Unicode line separators inside a text.
        reader = csv.reader(io.StringIO(text, newline="\n"), strict=True, delimiter=delimiter)
        try:
            for cells in reader:
                line, start = start, reader.line_num + 1
                stripped = [cell.strip() for cell in cells]
                if not any(stripped):
                    continue
                if not header:
                    header = stripped
                    self._check_columns(header, columns, f", line {line}")
                    columns = [*columns, *(name for name in optional if header.count(name) == 1)]
                    continue
                values = dict(zip(header, cells, strict=False))
                fields = {name: values.get(name) for name in columns}
                if self.own_spec and stripped == header:
                    self.reject(line, fields, "repeats the header; expected a row of data")
                elif len(cells) != len(header):
                    problem = f"got {len(cells)} columns; expected {len(header)}: {', '.join(header)}"
                    self.reject(line, fields, problem)
                else:
                    yield from self._checked([(line, fields)])
        except csv.Error as error:
            first = text.lstrip().partition("\n")[0]
            remedy = "" if delimiter in first else self._name_delimiter(first)
            raise self._error(f", line {start}: the CSV row that begins here breaks ({error})", remedy) from None
        if not header:
            raise self._error(f", line 1: no header; expected the columns {', '.join(columns)}")

    def parquet_rows(self, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yield the rows of a Parquet file, counted from 1; arguments as for `csv_rows`."""
        self.unit = "item"
        try:
            file = pq.ParquetFile(self.path)
            names = file.schema_arrow.names
            self._check_columns(names, columns)
            present = [name for name in optional if name in names]
            table = file.read(columns=[*columns, *present])
            rows: list[dict[str, Any]] = table.to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self.path}: not a readable Parquet file ({self.path.stat().st_size:,} bytes: {error})",
                remedy="the file is truncated or not Parquet; write or copy it again",
            ) from None
        kinds = {column.name: column.type for column in table.schema if has_floats(column.type)}
        for row in rows if kinds else ():
            row.update({name: stored(row[name], kind) for name, kind in kinds.items()})
        yield from self._checked(enumerate(rows, start=1))

    def parse(self, rows: Iterable[AnyRow], parser: Callable[[AnyRow], Parsed]) -> list[Parsed]:
        """Apply the parser to each row, and reject rows for which it raises BadRowError, or EventSample an error."""
        parsed = []
        for row in rows:
            try:
                parsed.append(parser(row))
            except (BadRowError, ValidationError) as error:
                problem = describe_validation_error(error) if isinstance(error, ValidationError) else str(error)
                content: object = row.text if isinstance(row, Line) else repr(row)
                if isinstance(row, Row):
                    content = (row.key, row.fields) if row.key else row.fields
                self.reject(row.number, content, problem)
        return parsed

    def sample(self, draft: Draft) -> EventSample:
        """Return the draft as a sample, with texts decoded; ValidationError if EventSample rejects it."""
        assert draft.relation is not None, "a filter leaves out rows without a relation"
        assert draft.context is not None, "a filter leaves out rows without a context"
        names = ("context", "refined_context", "question", "options", "answers", "habit")
        parts = {name: getattr(draft, name) for name in names}
        texts, decoded = decode_all_texts(
            {name: value if value is None or isinstance(value, str) else list(value) for name, value in parts.items()}
        )
        # Other entries of meta stay as the file has them, so that they can be found in it.
        quotes, _ = decode_all_texts({name: value for name, value in draft.meta.items() if name in QUOTING})
        decoded |= set(cast(Iterable[str], draft.meta.get(DECODED, ())))
        return EventSample(
            id=f"{self.dataset}-{self.split}-{draft.id or draft.number}",
            dataset=self.dataset,
            split=self.split,
            relation=draft.relation,
            format=self.format,
            subset=draft.subset,
            conversation=prompt_turns(*self.wording, texts["question"]) if self.format == "chat" else None,
            **texts,
            meta={
                "source": self.name,
                **({self.unit: draft.number} if draft.record_number else {}),
                **{name: value for name, value in draft.meta.items() if name != DECODED},
                **quotes,
                **({DECODED: sorted(decoded)} if decoded else {}),
                "licence": self.licence,
            },
        )

    def reject(self, number: int, row: object, problem: str) -> None:
        """Record a bad row, numbered in `unit`; UserError if bad rows are not skipped."""
        problem = cut(problem, 1_000)
        if not self.bad.skip:
            source = "the file" if self.own_spec else "the file (or fetch it again)"
            raise UserError(
                f"{self.path}, {self.unit} {number}: {problem}",
                remedy=f"fix {source}, or add --skip-bad: bad rows then go to bad_rows.jsonl and are counted",
            )
        place = {"file": f"{self.folder or self.dataset}/{self.name}", self.unit: number}
        entry = {"dataset": self.dataset, "split": self.split, **place, "error": problem, "row": row}
        self.bad.entries.append(entry)

    def _checked(self, items: Iterable[tuple[int, Any]], keys: Sequence[str] = ()) -> Iterator[Row]:
        """Yield numbered items as rows, and reject those that are no objects or have a value that cannot be used."""
        for place, (number, item) in enumerate(items):
            try:
                if not isinstance(item, dict):
                    check_values({"": item})
                    raise BadRowError(f"got {shown(item)}; expected a JSON object")
                check_values(item)
            except BadRowError as error:
                self.reject(number, item, str(error))
            else:
                yield Row(number, item, key=keys[place] if keys else "")

    def _text(self) -> str:
        content = read_bytes(self.path, is_own=bool(self.own_spec))
        try:
            return content.decode("utf-8").lstrip(BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise self._error(f", line {line}: not UTF-8 text ({error})", _AS_UTF8 if self.own_spec else "") from None

    def _json(self, kind: type[list[Any]] | type[dict[str, Any]]) -> tuple[str, Any]:
        text = self._text()
        try:
            value = decode_json(text)
        except json.JSONDecodeError as error:
            reason = f"the JSON ends or breaks here (column {error.colno:,}: {error.msg})"
            raise self._error(f", line {error.lineno}: {reason}") from None
        except RecursionError as error:
            raise self._error(f", line 1: the JSON nests too deeply ({error})") from None
        if not isinstance(value, kind):
            expected = "a JSON array" if kind is list else "a JSON object"
            problem = value.problem if isinstance(value, Flaw) else f"got {shown(value, 60)}; expected {expected}"
            raise self._error(f", line 1: {problem}")
        return text, value

    def _check_columns(self, header: Sequence[str], columns: Sequence[str], place: str = "") -> None:
        for name in columns:
            if header.count(name) == 1:
                continue
            problem, hint = "there more than once", ""
            if name not in header:
                problem, hint = "missing", did_you_mean(name, header)
            remedy = _damaged(is_own=False)
            if self.own_spec:
                remedy = f"name the file's own column under `columns:` in {self.own_spec}"
                remedy += f", perhaps\n    {self.suggest(header)}" if self.suggest else ""
                if len(header) == 1:
                    remedy = self._name_delimiter(header[0]) or remedy
            names = cut(", ".join(map(repr, header)))
            raise UserError(f"{self.path}{place}: column {name!r} is {problem}; found {names}.{hint}", remedy)

    def _name_delimiter(self, header: str) -> str:
        """Return the remedy for a header without the expected delimiter; "" if it has no other, or is published."""
        delimiter = next((mark for mark in ";\t|," if mark in header), "")
        if not (delimiter and self.own_spec):
            return ""
        return f"name the delimiter in {self.own_spec}, perhaps `delimiter: {json.dumps(delimiter)}`"

    def _error(self, problem: str, remedy: str = "") -> UserError:
        return UserError(f"{self.path}{problem}", remedy=remedy or _damaged(is_own=bool(self.own_spec)))


def read_bytes(path: Path, *, is_own: bool = False) -> bytes:
    """Return the content of a file, unpacked if its first bytes say that it is a gzip file, whatever its name.

    UserError if it is damaged or no data at all. `is_own`: it is a user's file, which no builder can download.
    """
    content = path.read_bytes()
    if content.startswith(_GZIP_MARK):
        content = _unpacked(path, is_own=is_own)
    if not content[:512].strip():
        raise UserError(f"{path}: the file is empty; expected data", remedy=_damaged(is_own=is_own))
    check_is_data(path, content[:512], is_own=is_own)
    return content


def _unpacked(path: Path, *, is_own: bool) -> bytes:
    content, most = bytearray(), most_unpacked(path)
    try:
        with gzip.open(path) as source:
            while chunk := source.read1(1 << 20):
                if not content:
                    check_is_data(path, chunk[:512], is_own=is_own)
                content += chunk
                if len(content) > most:
                    raise gzip.BadGzipFile(f"it unpacks to more than {most:,} bytes")
    except _GZIP_ERRORS as error:
        line = content.count(b"\n") + 1
        problem = f"{path}, line {line}: the gzip data ends or breaks here ({error})"
        raise UserError(problem, remedy=_damaged(is_own=is_own)) from None
    return bytes(content)


def check_is_data(path: Path, start: bytes, *, is_own: bool = False) -> None:
    """Raise UserError if a file, which begins with `start`, is a page, an error message, an archive or UTF-16."""
    content = start.removeprefix(b"\xef\xbb\xbf")
    plain = _MARKUP_COMMENTS.sub(b"", content).lower()
    if (plain.startswith(b"<?xml") and b"<html" in plain) or not plain:
        plain = b"<html"  # a page in XML, or only a comment so far
    kind, remedy = next(((kind, remedy) for mark, kind, remedy in _NOT_DATA if plain.startswith(mark)), ("", ""))
    text = content.decode("utf-8", errors="replace")
    # UTF-16, with or without its mark: every second byte of a text in Latin letters is zero.
    if not kind and start.count(0) * 4 > len(start):
        kind, remedy = "UTF-16 text or binary data", _AS_UTF8
        text = start.decode("utf-16-be" if start[:1] in (b"\xfe", b"\0") else "utf-16-le", errors="replace")
    if kind:
        raise UserError(
            f"{path}: holds {kind}, not data; it begins with {text.strip()[:60]!r}",
            remedy=remedy if is_own else f"{remedy}, or drop --raw and let the builder download it",
        )


def _damaged(*, is_own: bool) -> str:
    if is_own:
        return "the file is damaged, or not what its ending says: fix it, or save it again"
    return "the file is damaged: fetch it again, or drop --raw and let the builder download it"


def _problem_of_line(raw: bytes, text: str) -> str:
    """Return what is wrong with a line, given as bytes and as text; "" if nothing is."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text ({error}); {_AS_UTF8}"
    for char, name in (("\0", "NUL byte"), ("\r", "carriage return")):
        if char in text:
            return f"a {name} at column {text.index(char) + 1:,}; expected UTF-8 text with line feeds between lines"
    return ""


def _lines_of_items(text: str) -> list[int]:
    """Return the line in which each item of a JSON array begins; the text must be valid JSON."""
    decoder, lines = json.JSONDecoder(parse_int=str), list[int]()
    line, counted, i = 1, 0, text.index("[") + 1
    while text[i := cast(re.Match[str], _BETWEEN_ITEMS.match(text, i)).end()] != "]":
        line, counted = line + text.count("\n", counted, i), i
        lines.append(line)
        _, i = decoder.raw_decode(text, i)
    return lines

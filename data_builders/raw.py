"""Reading raw dataset files: whatever is wrong in them becomes one message with file, line, field and value.

A problem of one row is a `BadRowError`, which never leaves this package: `RawInput` turns it into a `UserError`,
or, when bad rows are skipped, into an entry of the side file. A problem of the whole file (empty, a web page
saved in its place) cannot be skipped.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, cast

from pydantic import ValidationError

from d2e_sft.errors import UserError
from d2e_sft.sample import EventSample, Split, describe_validation_error
from data_builders.raw_csv import BrokenCsvError, read_csv
from data_builders.raw_json import BrokenJsonError, array_items, array_start

Raw = TypeVar("Raw")
Parsed = TypeVar("Parsed")

_WEB_PAGE_MARKS = (b"<!doctype html", b"<html")
_GZIP_MARK = b"\x1f\x8b"


class BadRowError(Exception):
    """One raw row that breaks its dataset's format; caught by `RawInput.parse`."""

    @classmethod
    def at(cls, name: str, value: object, expected: str) -> BadRowError:
        """The row's field `name` holds `value` instead of what is expected."""
        return cls(f"{name}: got {value!r}; expected {expected}")


@dataclass
class BadRows:
    """What becomes of bad rows: the first one is an error, or all are collected for the side file."""

    skip: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)

    def count(self, dataset: str, split: str) -> int:
        return sum(entry["dataset"] == dataset and entry["split"] == split for entry in self.entries)


@dataclass
class RawInput:
    """One raw file that is read for one split.

    Attributes:
        dataset: name of the dataset.
        split: the split that the file's rows go to.
        name: the file's name inside the dataset's folder, with `/`; safe to write into outputs.
        path: where it lies on this machine; for messages only.
        bad: where bad rows go.
        unit: what the numbers of rows count; a JSON array may stand in one line, so its items are counted.
    """

    dataset: str
    split: Split
    name: str
    path: Path
    bad: BadRows
    unit: Literal["line", "item"] = "line"

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number, text without its line end) for each line that is not blank.

        Raises:
            UserError: the file is empty or a web page, or a line is not UTF-8 and bad rows are not skipped.
        """
        for number, raw in self._byte_lines():
            if not raw.strip():
                continue
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self.reject(number, raw.decode("utf-8", errors="replace"), f"not UTF-8 text ({error})")
                continue
            yield number, text.rstrip("\r\n")

    def _byte_lines(self) -> Iterator[tuple[int, bytes]]:
        """Bytes, not text mode: only "\\n" ends a row, and a wrong encoding has a line number."""
        check_is_data(self.path)
        number = 0
        with open_bytes(self.path) as source:
            try:
                for number, raw in enumerate(source, start=1):
                    yield number, raw
            except _GZIP_ERRORS as error:
                raise _broken_gzip(self.path, number + 1, error) from None

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) for each line of a JSON-lines file."""
        for number, text in self.lines():
            try:
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise BadRowError(f"got {row!r}; expected a JSON object")
            except (json.JSONDecodeError, RecursionError, BadRowError) as error:
                self.reject(number, text, f"not a JSON object ({error})")
                continue
            yield number, row

    def json_array(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number of its start, object) for each item of a file that is one JSON array of objects.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        for line, item in self._array():
            yield from self._object(line, item)

    def json_items(self, key: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
        """(number of the item, counted from 1, object) for each item of a JSON array of objects.

        Args:
            key: where the array stands in an object, the key of it; empty where the file is the array.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        self.unit = "item"
        for number, (_, item) in enumerate(self._array(key), start=1):
            yield from self._object(number, item)

    def _array(self, key: str = "") -> Iterator[tuple[int, Any]]:
        text = self._text()
        try:
            yield from array_items(text, array_start(text, key))
        except BrokenJsonError as error:
            raise UserError(f"{self.path}, {error}", remedy=_FETCH_AGAIN) from None

    def _object(self, number: int, item: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        if isinstance(item, dict):
            yield number, item
        else:
            self.reject(number, item, f"got {item!r}; expected a JSON object")

    def csv_rows(self, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number of its start, text of each column) for each row of a CSV file with a header.

        Raises:
            UserError: a column is missing, or the file breaks off inside a quoted text; neither can be skipped.
        """
        try:
            for line, row, problem in read_csv(self._text(), columns):
                if problem:
                    self.reject(line, row, problem)
                else:
                    yield line, row
        except BrokenCsvError as error:
            raise UserError(f"{self.path}, {error}", remedy=_FETCH_AGAIN) from None

    def _text(self) -> str:
        """The whole file; a byte that is not UTF-8 is an error with its line."""
        content = b"".join(raw for _, raw in self._byte_lines())
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UserError(f"{self.path}, line {line}: not UTF-8 text ({error})", remedy=_FETCH_AGAIN) from None

    def parse(self, rows: Iterable[tuple[int, Raw]], parser: Callable[[int, Raw], Parsed]) -> list[Parsed]:
        """Apply `parser(line, row)` to each row; rows for which it raises BadRowError are rejected."""
        parsed = []
        for line, row in rows:
            try:
                parsed.append(parser(line, row))
            except BadRowError as problem:
                self.reject(line, row, str(problem))
        return parsed

    def samples(
        self, rows: Iterable[Raw], to_sample: Callable[[Raw], EventSample], line_of: Callable[[Raw], int]
    ) -> list[EventSample]:
        """Turn parsed rows into samples; those that EventSample refuses are rejected."""
        samples = []
        for row in rows:
            try:
                samples.append(to_sample(row))
            except ValidationError as error:
                self.reject(line_of(row), repr(row), describe_validation_error(error))
        return samples

    def reject(self, line: int, row: object, problem: str) -> None:
        """Record a bad row, or raise; `line` is the number of the row, counted in `unit`.

        Raises:
            UserError: when bad rows are not skipped.
        """
        if not self.bad.skip:
            raise UserError(
                f"{self.path}, {self.unit} {line}: {problem}",
                remedy="mend the row, or add --skip-bad: bad rows then go to bad_rows.jsonl and are counted",
            )
        self.bad.entries.append(
            {
                "dataset": self.dataset,
                "split": self.split,
                "file": f"{self.dataset}/{self.name}",
                self.unit: line,
                "error": problem,
                "row": row,
            }
        )


_FETCH_AGAIN = "the file is damaged: fetch it again, or drop --raw and let the builder download it"


_GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where it is a gzip file; its first bytes tell, since endings differ."""
    with path.open("rb") as source:
        packed = source.read(len(_GZIP_MARK)) == _GZIP_MARK
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def _broken_gzip(path: Path, line: int, error: Exception) -> UserError:
    return UserError(f"{path}, line {line}: the gzip data ends or breaks here ({error})", remedy=_FETCH_AGAIN)


def check_is_data(path: Path) -> None:
    """Refuse a file that is empty, or a web page that was saved in place of the data.

    Raises:
        UserError: for either.
    """
    with open_bytes(path) as source:
        try:
            start = source.read(512)
        except _GZIP_ERRORS as error:
            raise _broken_gzip(path, 1, error) from None
    if not start.strip():
        raise UserError(f"{path}: the file is empty; expected data", remedy=_FETCH_AGAIN)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_WEB_PAGE_MARKS):
        raise UserError(
            f"{path}: holds a web page (HTML), not data",
            remedy="save the raw file, not the page that shows it, or drop --raw and let the builder download it",
        )


def text_field(row: dict[str, Any], name: str) -> str:
    """The text of a field, stripped.

    Raises:
        BadRowError: the field is missing, not text or blank.
    """
    if name not in row:
        raise BadRowError(f"{name}: missing; expected text (the row has {', '.join(map(str, row)) or 'no field'})")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise BadRowError.at(name, value, "text that is not empty")
    return value.strip()


def text_list(name: str, value: object) -> list[str]:
    """The texts of a list, stripped; blank ones stay, for a filter to judge.

    Raises:
        BadRowError: the value is not a list of texts.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRowError.at(name, value, "a list of texts")
    return [item.strip() for item in value]


def choice_field(name: str, value: object, allowed: Iterable[str]) -> str:
    """The value, if it is one of the allowed ones.

    Raises:
        BadRowError: it is not.
    """
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        raise BadRowError.at(name, value, f"one of {choices}")
    return value

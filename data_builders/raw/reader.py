"""Reading raw dataset files: whatever is wrong in them becomes one message with file, line, field and value.

A problem of one row is a `BadRowError`, which never leaves this package: `RawInput` turns it into a `UserError`,
or, when bad rows are skipped, into an entry of the side file. A problem of the whole file (empty, a web page
saved in its place) cannot be skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from d2e_sft.data.sample import EventSample, Split, describe_validation_error
from d2e_sft.util.errors import UserError
from data_builders.raw.bad_rows import BadRowError, BadRows, shortened, shown
from data_builders.raw.content import GZIP_ERRORS, broken_gzip, check_is_data, damaged, open_bytes
from data_builders.raw.csv_rows import BrokenCsvError, MissingColumnError, read_csv
from data_builders.raw.fields import check_texts
from data_builders.raw.json_rows import BrokenJsonError, array_items, array_start, decode_all

__all__ = ["BadRowError", "BadRows", "RawInput", "check_is_data", "open_bytes"]

Raw = TypeVar("Raw")
Parsed = TypeVar("Parsed")

_BYTE_ORDER_MARK = "\ufeff"
_SKIP = "--skip-bad: bad rows then go to bad_rows.jsonl and are counted"
_LONGEST_PROBLEM = 1_000


@dataclass(frozen=True)
class _Line:
    """A line that is not blank; `ends` tells that a line end follows, which the last line of a cut file lacks."""

    number: int
    text: str
    ends: bool


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
        folder: the dataset's folder, where it is not its name.
        own_spec: for a user's own data the file that describes it, which messages then name.
        numbers: the numbers of the lines read so far that are not blank, bad ones included.
    """

    dataset: str
    split: Split
    name: str
    path: Path
    bad: BadRows
    unit: Literal["line", "item"] = "line"
    folder: str = ""
    own_spec: str = ""
    numbers: list[int] = field(default_factory=list)

    @property
    def _damaged(self) -> str:
        return damaged(bool(self.own_spec))

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number, text without its line end and leading byte order marks) for each line that is not blank.

        Raises:
            UserError: the file is no data at all, or a line is bad (not UTF-8, holds a NUL or a carriage return
                that ends no line) and bad rows are not skipped.
        """
        return ((line.number, line.text) for line in self._lines())

    def _lines(self) -> Iterator[_Line]:
        for number, raw in self._byte_lines():
            if not raw.strip():
                continue
            self.numbers.append(number)
            text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
            line = _Line(number, text.lstrip(_BYTE_ORDER_MARK), ends=raw.endswith(b"\n"))
            problem = _problem(raw, line.text)
            if problem:
                self._reject_damaged(line, problem)
            else:
                yield line

    def _byte_lines(self) -> Iterator[tuple[int, bytes]]:
        """Bytes, not text mode: only "\\n" ends a row, and a wrong encoding has a line number."""
        check_is_data(self.path, own=bool(self.own_spec))
        number = 0
        with open_bytes(self.path) as source:
            try:
                for number, raw in enumerate(source, start=1):
                    yield number, raw
            except GZIP_ERRORS as error:
                raise broken_gzip(self.path, number + 1, error, own=bool(self.own_spec)) from None

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) for each line of a JSON-lines file."""
        for line in self._lines():
            try:
                row, problem = decode_all(line.text)
            except json.JSONDecodeError as error:
                found = f"it begins with {line.text[:60]!r}"
                self._reject_damaged(line, f"not a JSON object (column {error.colno:,}: {error.msg}); {found}")
                continue
            except RecursionError as error:
                self._reject_damaged(line, f"not a JSON object ({error})")
                continue
            yield from self._object(line.number, row, problem)

    def json_array(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number of its start, object) for each item of a file that is one JSON array of objects.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        for line, item, problem in self._array():
            yield from self._object(line, item, problem)

    def json_items(self, key: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
        """(number of the item, counted from 1, object) for each item of a JSON array of objects.

        Args:
            key: where the array stands in an object, the key of it; empty where the file is the array.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        self.unit = "item"
        for number, (_, item, problem) in enumerate(self._array(key), start=1):
            yield from self._object(number, item, problem)

    def json_members(self) -> Iterator[tuple[int, tuple[str, dict[str, Any]]]]:
        """(number of the member, counted from 1, (key, object)) for each member of a JSON object of objects.

        Raises:
            UserError: the file is not such an object; a broken one cannot be skipped over.
        """
        self.unit = "item"
        try:
            content, problem = decode_all(self._text())
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{self.path}: not a JSON object ({error})", remedy=self._damaged) from None
        if problem or not isinstance(content, dict):
            raise UserError(
                f"{self.path}: {problem or f'got {shown(content)}; expected a JSON object'}", remedy=self._damaged
            )
        for number, (key, item) in enumerate(content.items(), start=1):
            for _, row in self._object(number, item, ""):
                yield number, (key, row)

    def _array(self, key: str = "") -> Iterator[tuple[int, Any, str]]:
        text = self._text()
        try:
            yield from array_items(text, array_start(text, key))
        except BrokenJsonError as error:
            raise UserError(f"{self.path}, {error}", remedy=self._damaged) from None

    def _object(self, number: int, item: Any, problem: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The item, if it is an object without problem whose texts are sound."""
        try:
            if not isinstance(item, dict):
                raise BadRowError(f"got {shown(item)}; expected a JSON object")
            if problem:
                raise BadRowError(problem)
            check_texts(item)
        except BadRowError as error:
            self.reject(number, item, str(error))
        else:
            yield number, item

    def csv_rows(
        self, columns: Sequence[str], *, optional: Sequence[str] = (), delimiter: str = ","
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number of its start, text of each column) for each row of a CSV file with a header.

        Args:
            columns: those that must be there.
            optional: those that are read where they are there.
            delimiter: what stands between two cells.

        Raises:
            UserError: a column is missing, or the file breaks off inside a quoted text; neither can be skipped.
        """
        try:
            for line, row, problem in read_csv(self._text(), columns, optional=optional, delimiter=delimiter):
                if problem:
                    self.reject(line, row, problem)
                else:
                    yield from self._object(line, row, "")
        except MissingColumnError as error:
            mapped = f"name the file's own column under `columns:` in {self.own_spec}"
            raise UserError(f"{self.path}, {error}", remedy=mapped if self.own_spec else self._damaged) from None
        except BrokenCsvError as error:
            raise UserError(f"{self.path}, {error}", remedy=self._damaged) from None

    def _text(self) -> str:
        """The whole file without leading byte order marks; a byte that is not UTF-8 is an error with its line."""
        content = b"".join(raw for _, raw in self._byte_lines())
        try:
            return content.decode("utf-8").lstrip(_BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise UserError(f"{self.path}, line {line}: not UTF-8 text ({error})", remedy=self._damaged) from None

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
        self,
        rows: Iterable[Raw],
        to_sample: Callable[[Raw], EventSample],
        line_of: Callable[[Raw], int] = attrgetter("line"),
    ) -> list[EventSample]:
        """Turn parsed rows into samples; those that EventSample refuses are rejected."""
        samples = []
        for row in rows:
            try:
                samples.append(to_sample(row))
            except ValidationError as error:
                self.reject(line_of(row), repr(row), describe_validation_error(error))
        return samples

    def reject(self, line: int, row: object, problem: str, remedy: str = f"mend the row, or add {_SKIP}") -> None:
        """Record a bad row, or raise; `line` is the number of the row, counted in `unit`.

        Raises:
            UserError: when bad rows are not skipped.
        """
        problem = shortened(problem, _LONGEST_PROBLEM)
        if not self.bad.skip:
            raise UserError(f"{self.path}, {self.unit} {line}: {problem}", remedy=remedy)
        self.bad.entries.append(
            {
                "dataset": self.dataset,
                "split": self.split,
                "file": f"{self.folder or self.dataset}/{self.name}",
                self.unit: line,
                "error": problem,
                "row": row,
            }
        )

    def _reject_damaged(self, line: _Line, problem: str) -> None:
        """Reject a line that is no row at all: as the first or the unfinished last one it tells of a damaged file."""
        if line.number == self.numbers[0] or not line.ends:
            self.reject(line.number, line.text, problem, f"{self._damaged}. If only this row is bad, add {_SKIP}")
        else:
            self.reject(line.number, line.text, problem)


def _problem(raw: bytes, text: str) -> str:
    """What is wrong with the bytes of a line, or with their text, or ""."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text ({error})"
    if "\0" in text:
        return f"a NUL byte at column {text.index(chr(0)) + 1:,}; expected text without NUL bytes"
    if "\r" in text:
        return (
            f"a carriage return at column {text.index(chr(13)) + 1:,}, inside the line; expected lines that end in "
            "a line feed, with or without a carriage return before it"
        )
    return ""

"""Reading raw dataset files: whatever is wrong in them becomes one message with file, line, field and value.

A problem of one row is a `BadRowError`, which never leaves this package: `RawInput` turns it into a `UserError`,
or, when bad rows are skipped, into an entry of the side file. A problem of the whole file (empty, a web page
saved in its place) cannot be skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from d2e_sft.errors import UserError
from d2e_sft.sample import EventSample, Split, describe_validation_error

Raw = TypeVar("Raw")
Parsed = TypeVar("Parsed")

_WEB_PAGE_MARKS = (b"<!doctype html", b"<html")


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
    """

    dataset: str
    split: Split
    name: str
    path: Path
    bad: BadRows

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number, text without its line end) for each line that is not blank.

        Raises:
            UserError: the file is empty or a web page, or a line is not UTF-8 and bad rows are not skipped.
        """
        check_is_data(self.path)
        # Bytes, not text mode: only "\n" ends a row, and a wrong encoding has a line number.
        with self.path.open("rb") as source:
            for number, raw in enumerate(source, start=1):
                if not raw.strip():
                    continue
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    self.reject(number, raw.decode("utf-8", errors="replace"), f"not UTF-8 text ({error})")
                    continue
                yield number, text.rstrip("\r\n")

    def json_lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number, object) for each line of a JSON-lines file."""
        for number, text in self.lines():
            try:
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise BadRowError(f"got {row!r}; expected a JSON object")
            except (json.JSONDecodeError, BadRowError) as error:
                self.reject(number, text, f"not a JSON object ({error})")
                continue
            yield number, row

    def json_array(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(line number of its start, object) for each item of a file that is one JSON array of objects.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        check_is_data(self.path)
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.path}: not UTF-8 text ({error})", remedy=_FETCH_AGAIN) from None
        if not text.lstrip().startswith("["):
            raise UserError(f"{self.path}, line 1: got {text.lstrip()[:20]!r}; expected a JSON array '['")
        yield from self._array_items(text)

    def _array_items(self, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
        decoder = json.JSONDecoder()
        at = _skip_blanks(text, text.index("[") + 1)
        line, counted = 1, 0
        while text[at : at + 1] != "]":
            line, counted = line + text.count("\n", counted, at), at
            try:
                item, at = decoder.raw_decode(text, at)
                at = _skip_blanks(text, at)
                if text[at : at + 1] not in (",", "]"):
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{self.path}, line {error.lineno}: the JSON array ends or breaks here ({error.msg})",
                    remedy=_FETCH_AGAIN,
                ) from None
            if text[at] == ",":
                at = _skip_blanks(text, at + 1)
            if isinstance(item, dict):
                yield line, item
            else:
                self.reject(line, item, f"got {item!r}; expected a JSON object")

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
        """Record a bad row, or raise.

        Raises:
            UserError: when bad rows are not skipped.
        """
        if not self.bad.skip:
            raise UserError(
                f"{self.path}, line {line}: {problem}",
                remedy="mend the row, or add --skip-bad: bad rows then go to bad_rows.jsonl and are counted",
            )
        self.bad.entries.append(
            {
                "dataset": self.dataset,
                "split": self.split,
                "file": f"{self.dataset}/{self.name}",
                "line": line,
                "error": problem,
                "row": row,
            }
        )


_FETCH_AGAIN = "the file is damaged: fetch it again, or drop --raw and let the builder download it"


def check_is_data(path: Path) -> None:
    """Refuse a file that is empty, or a web page that was saved in place of the data.

    Raises:
        UserError: for either.
    """
    with path.open("rb") as source:
        start = source.read(512)
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


def choice_field(name: str, value: object, allowed: Iterable[str]) -> str:
    """The value, if it is one of the allowed ones.

    Raises:
        BadRowError: it is not.
    """
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        raise BadRowError.at(name, value, f"one of {choices}")
    return value


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at

"""Read a raw file (lines, JSON lines, a JSON array or object, CSV, Parquet; gzip or not) as typed rows.

Errors name file, line, field and value. A `BadRowError` concerns one row: `RawInput` raises it as a `UserError` or, if
bad rows are skipped, records the row. An error of the whole file (`contents.py`) cannot be skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import ValidationError

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.data.sample import EventSample, Format, Split
from d2e_sft.util.errors import UserError, describe_validation_error
from data_builders.raw.characters import DECODED, QUOTING, decode_all_texts
from data_builders.raw.contents import FileContents
from data_builders.raw.decoding import decode_json, lines_of_items, problem_of_line
from data_builders.raw.row import BYTE_ORDER_MARK, BadRowError, Draft, Row, check_values, cut, shown


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
class RawInput(FileContents):
    """One raw file that is read for one split.

    Attributes:
        split: The split that the file's rows go to.
        name: The file's path inside the dataset's folder, with `/`; safe to write into outputs.
        path: Its path on this machine; only for messages.
        format, licence: Format and licence of the samples made from it.
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
        for number, raw in self._byte_lines():
            if not raw.strip():
                continue
            self.numbers.append(number)
            text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
            line = Line(number, text.lstrip(BYTE_ORDER_MARK))
            if problem := problem_of_line(raw, line.text):
                self.reject(number, line.text, problem)
            else:
                yield line

    def json_lines(self) -> Iterator[Row]:
        """Yield the objects of a JSON-lines file."""
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
        yield from self._checked(zip(lines_of_items(text), items, strict=True))

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
        for line, named, problem in self._csv(columns, optional, delimiter):
            if problem:
                self.reject(line, named, problem)
            else:
                yield from self._checked([(line, named)])

    def parquet_rows(self, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yield the rows of a Parquet file, counted from 1; arguments as for `csv_rows`."""
        self.unit = "item"
        yield from self._checked(enumerate(self._parquet(columns, optional), start=1))

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
        given = {name: getattr(draft, name) for name in names}
        texts, decoded = decode_all_texts(
            {name: value if value is None or isinstance(value, str) else list(value) for name, value in given.items()}
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

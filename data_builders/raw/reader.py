"""Reading a raw file (lines, JSON lines, a JSON array or object, CSV, Parquet; gzip or not) as typed rows.

Whatever is wrong becomes one message with file, line, field and value. A problem of one row is a `BadRowError`, which
never leaves this package: `RawInput` turns it into a `UserError`, or, when bad rows are skipped, into an entry of the
side file. A problem of the whole file (empty, cut short, a web page saved in its place) cannot be skipped.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from d2e_sft.data.sample import EventSample, Format, Relation, Split, Subset, describe_validation_error
from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.raw.characters import DECODED, QUOTING, decode_all_texts
from data_builders.raw.decoding import (
    DAMAGED,
    GZIP_ERRORS,
    OWN_DAMAGED,
    OtherJsonError,
    after_item,
    array_start,
    broken_gzip,
    check_is_data,
    decode,
    decode_all,
    open_bytes,
    problem_of_cells,
    problem_of_line,
    with_limit,
)
from data_builders.raw.row import BYTE_ORDER_MARK, BadRowError, Row, check_texts, shortened, shown

_SKIP = "--skip-bad: bad rows then go to bad_rows.jsonl and are counted"
_LONGEST_PROBLEM = 1_000


@dataclass
class BadRows:
    """What becomes of bad rows: the first one is an error, or all are collected for the side file."""

    skip: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)

    def count(self, dataset: str, split: str) -> int:
        return sum(entry["dataset"] == dataset and entry["split"] == split for entry in self.entries)


@dataclass(frozen=True)
class Line:
    """A line that is not blank, without its line end and leading byte order marks.

    Attributes:
        ends: whether a line end follows, which the last line of a file that was cut lacks.
    """

    number: int
    text: str
    ends: bool = True

    @property
    def content(self) -> object:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a row gives for a sample, before filters and the checks of `EventSample`.

    Attributes:
        number: of the row that it was made of.
        relation, context: None where the row gives none that can be used, so that a filter leaves it out.
        id: what tells it from the others of its dataset and split; empty is the number.
        meta: what else to record, beside file, row and licence.
        record_number: whether the number is recorded, too.
        refined_context: where the row itself says what of the context the answer needs.
        subset, habit: as in EventSample.
    """

    number: int
    relation: Relation | None
    context: str | None
    question: str
    answers: Collection[str]
    options: Collection[str] = ()
    id: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)
    record_number: bool = True
    refined_context: str | None = None
    subset: Subset | None = None
    habit: Collection[str] = ()


class _Numbered(Protocol):
    @property
    def number(self) -> int: ...


Raw = TypeVar("Raw", Line, Row)
AnyParsed = TypeVar("AnyParsed")
Parsed = TypeVar("Parsed", bound=_Numbered)


@dataclass
class RawInput:
    """One raw file that is read for one split.

    Attributes:
        dataset: name of the dataset.
        split: the split that the file's rows go to.
        name: the file's name inside the dataset's folder, with `/`; safe to write into outputs.
        path: where it lies on this machine; for messages only.
        bad: where bad rows go.
        format, licence: of the samples that are made of it.
        unit: what the numbers of rows count; a JSON array may stand in one line, so its items are counted.
        folder: the dataset's folder, where it is not its name.
        own_spec: for a user's own data the file that describes it, which messages then name.
        suggest: for a user's own data: the columns of the file → the nearest `columns: {…}` for the description.
        numbers: the numbers of the lines read so far that are not blank, bad ones included.
    """

    dataset: str
    split: Split
    name: str
    path: Path
    bad: BadRows
    format: Format = "qa"
    licence: str = ""
    unit: Literal["line", "item"] = "line"
    folder: str = ""
    own_spec: str = ""
    suggest: Callable[[Sequence[str]], str] | None = None
    numbers: list[int] = field(default_factory=list)

    @property
    def _damaged(self) -> str:
        """The remedy for a damaged file; a user's own file can be got from nowhere else."""
        return OWN_DAMAGED if self.own_spec else DAMAGED

    def _error(self, problem: str) -> UserError:
        return UserError(f"{self.path}{problem}", remedy=self._damaged)

    def lines(self) -> Iterator[Line]:
        """Each line that is not blank.

        Raises:
            UserError: the file is no data at all, or a line is bad (not UTF-8, holds a NUL or a carriage return
                that ends no line) and bad rows are not skipped.
        """
        for number, raw in self._byte_lines():
            if not raw.strip():
                continue
            self.numbers.append(number)
            text = raw.decode("utf-8", errors="replace").removesuffix("\n").removesuffix("\r")
            line = Line(number, text.lstrip(BYTE_ORDER_MARK), ends=raw.endswith(b"\n"))
            if problem := problem_of_line(raw, line.text):
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
                raise self._error(f", line {number + 1}: {broken_gzip(error)}") from None

    def _text(self) -> str:
        """The whole file without leading byte order marks; a byte that is not UTF-8 is an error with its line."""
        content = b"".join(raw for _, raw in self._byte_lines())
        try:
            return content.decode("utf-8").lstrip(BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise self._error(f", line {line}: not UTF-8 text ({error})") from None

    def json_lines(self) -> Iterator[Row]:
        """The objects of a JSON-lines file."""
        for line in self.lines():
            try:
                row, problem = decode_all(line.text)
            except json.JSONDecodeError as error:
                found = f"it begins with {line.text[:60]!r}"
                self._reject_damaged(line, f"not a JSON object (column {error.colno:,}: {error.msg}); {found}")
            except RecursionError as error:
                self._reject_damaged(line, f"not a JSON object ({error})")
            else:
                yield from self._checked(line.number, row, problem)

    def json_array(self) -> Iterator[Row]:
        """The items of a file that is one JSON array of objects, by the line in which each begins.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        for line, item, problem in self._array():
            yield from self._checked(line, item, problem)

    def json_items(self, key: str = "") -> Iterator[Row]:
        """The items of a JSON array of objects, counted from 1.

        Args:
            key: where the array stands in an object, the key of it; empty where the file is the array.

        Raises:
            UserError: the file is not such an array; a broken array cannot be skipped over.
        """
        self.unit = "item"
        for number, (_, item, problem) in enumerate(self._array(key), start=1):
            yield from self._checked(number, item, problem)

    def json_members(self) -> Iterator[Row]:
        """The members of a JSON object of objects, counted from 1, each with its key.

        Raises:
            UserError: the file is not such an object; a broken one cannot be skipped over.
        """
        self.unit = "item"
        try:
            content, problem = decode_all(self._text())
        except (json.JSONDecodeError, RecursionError) as error:
            raise self._error(f": not a JSON object ({error})") from None
        if problem or not isinstance(content, dict):
            raise self._error(f": {problem or f'got {shown(content)}; expected a JSON object'}")
        for number, (key, item) in enumerate(content.items(), start=1):
            yield from self._checked(number, item, key=key)

    def _array(self, key: str = "") -> Iterator[tuple[int, Any, str]]:
        """(line of its start, value, what is wrong with it or "") for each item of the file's array."""
        text = self._text()
        try:
            at = array_start(text, key)
        except json.JSONDecodeError as error:
            raise self._error(_broken("object", error)) from None
        except RecursionError as error:
            raise self._error(f", line 1: the JSON object nests too deeply ({error})") from None
        except OtherJsonError as error:
            raise self._error(f", line 1: {error}") from None
        line, counted = 1, 0
        while text[at : at + 1] != "]":
            line, counted = line + text.count("\n", counted, at), at
            try:
                item, at, problem = decode(text, at)
                at = after_item(text, at, "]")
            except json.JSONDecodeError as error:
                raise self._error(_broken("array", error)) from None
            except RecursionError as error:
                raise self._error(f", line {line}: the JSON array nests too deeply ({error})") from None
            yield line, item, problem

    def csv_rows(self, columns: Sequence[str], *, optional: Sequence[str] = (), delimiter: str = ",") -> Iterator[Row]:
        """The rows of a CSV file with a header that are not blank, by the line in which each begins.

        A quoted text may hold line breaks, so a row may span lines.

        Args:
            columns: those that must be there.
            optional: those that are read where they are there.
            delimiter: what stands between two cells.

        Raises:
            UserError: a column is missing, or the file breaks off inside a quoted text; neither can be skipped.
        """
        text = self._text()
        # Lines keep their ends: a "\r" or a Unicode line separator inside a text is part of the text.
        reader = csv.reader(re.findall(r"[^\n]*\n|[^\n]+", text), strict=True, delimiter=delimiter)
        header: list[str] = []
        start = 1
        try:
            for cells in with_limit(reader, len(text) + 1):
                line, start = start, reader.line_num + 1
                if not any(cell.strip() for cell in cells):
                    continue
                if not header:
                    header = [cell.strip() for cell in cells]
                    self._check_first_row(line, header, reader, columns)
                    self._check_columns(header, columns, f", line {line}")
                    columns = [*columns, *(name for name in optional if header.count(name) == 1)]
                    continue
                row: dict[str, Any] = dict(zip(header, cells, strict=False))
                named = {name: row.get(name) for name in columns}
                if self.own_spec and [cell.strip() for cell in cells] == header:
                    self.reject(line, named, "repeats the header; expected a row of data")
                elif problem := problem_of_cells(header, cells):
                    self.reject(line, named, problem)
                else:
                    yield from self._checked(line, named)
        except csv.Error as error:
            raise self._error(f", line {start}: the CSV row that begins here breaks ({error})") from None
        if not header:
            raise self._error(f", line 1: no header; expected the columns {', '.join(columns)}")

    def _check_first_row(
        self, line: int, header: Sequence[str], rest: Iterator[Sequence[str]], columns: Sequence[str]
    ) -> None:
        """Refuse a user's own CSV whose header has another row above it: a title, or names of groups of columns."""
        if not self.own_spec or all(header.count(name) == 1 for name in columns):
            return
        second = [cell.strip() for cell in next((cells for cells in rest if any(map(str.strip, cells))), [])]
        if all(second.count(name) == 1 for name in columns):
            raise UserError(
                f"{self.path}, line {line}: got {shortened(', '.join(map(repr, header)))}, and only the row below has "
                f"the columns {', '.join(map(repr, columns))}; expected one header row, the first",
                remedy="delete what stands above the header",
            )

    def parquet_rows(self, columns: Sequence[str], *, optional: Sequence[str] = ()) -> Iterator[Row]:
        """The rows of a Parquet file, counted from 1; arguments and errors as for `csv_rows`."""
        self.unit = "item"
        try:
            file = pq.ParquetFile(self.path)
            names = file.schema_arrow.names
            self._check_columns(names, columns)
            rows = file.read(columns=[*columns, *(name for name in optional if name in names)]).to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self.path}: not a readable Parquet file ({self.path.stat().st_size:,} bytes: {error})",
                remedy="the file is truncated or not Parquet; write or copy it again",
            ) from None
        for number, row in enumerate(rows, start=1):
            yield from self._checked(number, row)

    def _check_columns(self, header: Sequence[str], columns: Sequence[str], place: str = "") -> None:
        for name in columns:
            if header.count(name) != 1:
                found = shortened(", ".join(map(repr, header)))
                how = "missing" if name not in header else "there more than once"
                hint = did_you_mean(name, header) if name not in header else ""
                mapped = f"name the file's own column under `columns:` in {self.own_spec}"
                if self.suggest:
                    mapped += f", perhaps\n    {self.suggest(header)}"
                raise UserError(
                    f"{self.path}{place}: column {name!r} is {how}; found {found}.{hint}",
                    remedy=mapped if self.own_spec else self._damaged,
                )

    def _checked(self, number: int, item: Any, problem: str = "", key: str = "") -> Iterator[Row]:
        """The item as a row, if it is an object without problem whose texts are sound."""
        try:
            if not isinstance(item, dict):
                raise BadRowError(f"got {shown(item)}; expected a JSON object")
            if problem:
                raise BadRowError(problem)
            check_texts(item)
        except BadRowError as error:
            self.reject(number, item, str(error))
        else:
            yield Row(number, item, key=key)

    def parse(self, rows: Iterable[Raw], parser: Callable[[Raw], AnyParsed]) -> list[AnyParsed]:
        """Apply the parser to each row; rows for which it raises BadRowError are rejected."""
        parsed = []
        for row in rows:
            try:
                parsed.append(parser(row))
            except BadRowError as problem:
                self.reject(row.number, row.content, str(problem))
        return parsed

    def sample(self, draft: Draft) -> EventSample:
        """A sample of this file; what was decoded in its texts stands in `meta.decoded`.

        Raises:
            BadRowError: EventSample refuses it.
        """
        # A filter left the others out.
        assert draft.relation is not None
        assert draft.context is not None
        texts, decoded = decode_all_texts(
            {
                "context": draft.context,
                "refined_context": draft.refined_context,
                "question": draft.question,
                "options": list(draft.options),
                "answers": list(draft.answers),
                "habit": list(draft.habit),
            }
        )
        # What else the meta records stays as the file has it, so that it can be found there.
        quotes, _ = decode_all_texts({name: value for name, value in draft.meta.items() if name in QUOTING})
        decoded |= set(cast(Iterable[str], draft.meta.get(DECODED, ())))
        try:
            return EventSample(
                id=f"{self.dataset}-{self.split}-{draft.id or draft.number}",
                dataset=self.dataset,
                split=self.split,
                relation=draft.relation,
                format=self.format,
                subset=draft.subset,
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
        except ValidationError as error:
            raise BadRowError(describe_validation_error(error)) from None

    def samples(self, rows: Iterable[Parsed], to_sample: Callable[[Parsed], EventSample]) -> list[EventSample]:
        """Turn parsed rows into samples; those for which `to_sample` raises BadRowError are rejected."""
        samples = []
        for row in rows:
            try:
                samples.append(to_sample(row))
            except BadRowError as problem:
                self.reject(row.number, repr(row), str(problem))
        return samples

    def reject(self, number: int, row: object, problem: str, remedy: str = f"mend the row, or add {_SKIP}") -> None:
        """Record a bad row, or raise; `number` is that of the row, counted in `unit`.

        Raises:
            UserError: when bad rows are not skipped.
        """
        problem = shortened(problem, _LONGEST_PROBLEM)
        if not self.bad.skip:
            raise UserError(f"{self.path}, {self.unit} {number}: {problem}", remedy=remedy)
        self.bad.entries.append(
            {
                "dataset": self.dataset,
                "split": self.split,
                "file": f"{self.folder or self.dataset}/{self.name}",
                self.unit: number,
                "error": problem,
                "row": row,
            }
        )

    def _reject_damaged(self, line: Line, problem: str) -> None:
        """Reject a line that is no row at all: as the first or the unfinished last one it tells of a damaged file."""
        if line.number == self.numbers[0] or not line.ends:
            self.reject(line.number, line.text, problem, f"{self._damaged}. If only this row is bad, add {_SKIP}")
        else:
            self.reject(line.number, line.text, problem)


def _broken(what: str, error: json.JSONDecodeError) -> str:
    # Many files have one line only; there the column says more.
    return f", line {error.lineno}: the JSON {what} ends or breaks here (column {error.colno:,}: {error.msg})"

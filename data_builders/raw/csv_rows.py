"""The rows of a CSV file with a header, read strictly and with the lines on which they begin."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

from d2e_sft.util.errors import did_you_mean
from data_builders.raw.bad_rows import shortened

_LONGEST_CELL = 131_072  # csv's own limit, which would refuse the file and name no column


class BrokenCsvError(Exception):
    """Text that is not the expected CSV as a whole; the message begins with its line."""


class MissingColumnError(BrokenCsvError):
    """The header lacks a column, or has it twice."""


def read_csv(
    text: str, columns: Sequence[str], *, optional: Sequence[str] = (), delimiter: str = ","
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """(line of its start, text by column, what is wrong with it or "") for each row that is not blank.

    A quoted text may hold line breaks, so a row may span lines. Only the named columns are returned, of the optional
    ones those that are there.

    Raises:
        MissingColumnError: a named column is missing or stands twice.
        BrokenCsvError: the quoting breaks.
    """
    # Lines keep their ends: a "\r" or a Unicode line separator inside a text is part of the text.
    reader = csv.reader(_lines(text), strict=True, delimiter=delimiter)
    header: list[str] = []
    start = 1
    try:
        for cells in _with_limit(reader, len(text) + 1):
            line, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = _checked_header(cells, columns, line)
                columns = [*columns, *(name for name in optional if header.count(name) == 1)]
                continue
            row: dict[str, Any] = dict(zip(header, cells, strict=False))
            yield line, {name: row.get(name) for name in columns}, _problem(header, cells)
    except csv.Error as error:
        raise BrokenCsvError(f"line {start}: the CSV row that begins here breaks ({error})") from None
    if not header:
        raise BrokenCsvError(f"line 1: no header; expected the columns {', '.join(columns)}")


def _with_limit(reader: Iterator[list[str]], limit: int) -> Iterator[list[str]]:
    """The reader's rows under another limit of cells, which holds for the whole process: so for no longer than needed.

    A limit around all rows would stay as it is for as long as somebody holds on to a reader that was left halfway.
    """
    while True:
        before = csv.field_size_limit(limit)
        try:
            cells = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(before)
        yield cells


def _lines(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        yield text[at:end]
        at = end


def _checked_header(cells: Sequence[str], columns: Sequence[str], line: int) -> list[str]:
    header = [cell.strip() for cell in cells]
    for name in columns:
        if header.count(name) != 1:
            found = shortened(", ".join(map(repr, header)))
            how = "missing" if name not in header else "there more than once"
            hint = did_you_mean(name, header) if name not in header else ""
            raise MissingColumnError(f"line {line}: column {name!r} is {how}; found {found}.{hint}")
    return header


def _problem(header: Sequence[str], cells: Sequence[str]) -> str:
    if len(cells) != len(header):
        return f"got {len(cells)} columns; expected {len(header)}: {', '.join(header)}"
    for name, cell in zip(header, cells, strict=True):
        if len(cell) > _LONGEST_CELL:
            return f"{name}: got {len(cell):,} characters; expected at most {_LONGEST_CELL:,} in a cell"
    return ""

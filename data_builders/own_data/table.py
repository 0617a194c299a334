"""The rows of a user's file, whatever its ending, with their places and the columns that are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from d2e_sft.util.errors import UserError, did_you_mean
from data_builders.own_data.spec import DELIMITERS, OwnSpec, ending_of
from data_builders.raw.bad_rows import BadRowError, shortened
from data_builders.raw.fields import check_texts
from data_builders.raw.reader import RawInput

_ITS_OTHER_DELIMITERS = (";", "\t", "|", ",")


def read_rows(
    raw: RawInput, spec: OwnSpec, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, or number of the item, row) for each row of a file.

    Rows of CSV, TSV and Parquet hold the columns, and of the optional ones those that the file has; a row of JSON is
    the object as it stands, since each may have other keys.

    Raises:
        UserError: the file is not what its ending says, or lacks a column.
    """
    ending = ending_of(raw.name)
    if ending in DELIMITERS:
        delimiter = spec.delimiter or DELIMITERS[ending]
        _check_delimiter(raw, delimiter)
        yield from raw.csv_rows(columns, optional=optional, delimiter=delimiter)
    elif ending == ".jsonl":
        yield from raw.json_lines()
    elif ending == ".json":
        yield from raw.json_items()
    else:
        yield from _parquet_rows(raw, columns, optional)


def _check_delimiter(raw: RawInput, delimiter: str) -> None:
    """Refuse a header that is one cell and holds what other programs put between cells."""
    header = next((text for _, text in raw.lines()), "")
    raw.numbers.clear()
    found = [other for other in _ITS_OTHER_DELIMITERS if other != delimiter and other in header]
    if found and delimiter not in header:
        raise UserError(
            f"{raw.path}, line 1: got the header {shortened(header)!r}; expected {delimiter!r} between its columns",
            remedy=f'say what stands between them in {raw.own_spec}, perhaps `delimiter: "{_escaped(found[0])}"`',
        )


def _escaped(delimiter: str) -> str:
    return delimiter.replace("\t", "\\t")


def _parquet_rows(
    raw: RawInput, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    raw.unit = "item"
    try:
        file = pq.ParquetFile(raw.path)
        there = file.schema_arrow.names
        wanted = _checked_columns(raw, there, columns) + [name for name in optional if name in there]
        rows = file.read(columns=wanted).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{raw.path}: not a readable Parquet file ({raw.path.stat().st_size:,} bytes: {error})",
            remedy="the file is truncated or not Parquet; write or copy it again",
        ) from None
    for number, row in enumerate(rows, start=1):
        try:
            check_texts(row)
        except BadRowError as problem:
            raw.reject(number, row, str(problem))
        else:
            yield number, row


def _checked_columns(raw: RawInput, there: Sequence[str], columns: Sequence[str]) -> list[str]:
    for name in columns:
        if there.count(name) != 1:
            how = "missing" if name not in there else "there more than once"
            found = shortened(", ".join(map(repr, there)))
            raise UserError(
                f"{raw.path}: column {name!r} is {how}; found {found}.{did_you_mean(name, there)}",
                remedy=f"name the file's own column under `columns:` in {raw.own_spec}",
            )
    return list(columns)

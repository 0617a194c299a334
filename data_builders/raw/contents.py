"""The content of one raw file as text, JSON or table; every error names the file and, where there is one, the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import most_unpacked
from data_builders.raw.decoding import (
    AS_UTF8,
    BROKEN_GZIP,
    GZIP_ERRORS,
    check_is_data,
    damaged,
    decode_json,
    open_bytes,
)
from data_builders.raw.row import BYTE_ORDER_MARK, Flaw, cut, shown

csv.field_size_limit(2**31 - 1)  # the default of 131,072 characters refuses long passages


class FileContents:
    """Base of `RawInput`, which describes the attributes: what is in the file at `path`."""

    path: Path
    own_spec: str
    suggest: Callable[[Sequence[str]], str] | None

    def _error(self, problem: str, remedy: str = "") -> UserError:
        """Return the error of a damaged file."""
        return UserError(f"{self.path}{problem}", remedy=remedy or damaged(own=bool(self.own_spec)))

    def _name_delimiter(self, header: str) -> str:
        """Return the remedy for a header without the expected delimiter; "" if it has no other, or is published."""
        other = next((mark for mark in ";\t|," if mark in header), "")
        return f"name the delimiter in {self.own_spec}, perhaps `delimiter: {json.dumps(other)}`" * bool(
            other and self.own_spec
        )

    def _byte_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield lines as bytes, since only "\\n" ends a row and a wrong encoding needs its line number."""
        check_is_data(self.path, own=bool(self.own_spec))
        number = 0
        with open_bytes(self.path) as source:
            most = most_unpacked(self.path) if isinstance(source, gzip.GzipFile) else self.path.stat().st_size
            left = most
            try:
                while raw := source.readline(left + 1):
                    if (left := left - len(raw)) < 0:
                        raise gzip.BadGzipFile(f"it unpacks to more than {most:,} bytes")
                    number += 1
                    yield number, raw
            except GZIP_ERRORS as error:
                raise self._error(f", line {number + 1}: {BROKEN_GZIP} ({error})") from None

    def _text(self) -> str:
        """Return the whole file without leading byte order marks."""
        content = b"".join(raw for _, raw in self._byte_lines())
        try:
            return content.decode("utf-8").lstrip(BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise self._error(f", line {line}: not UTF-8 text ({error})", AS_UTF8 if self.own_spec else "") from None

    def _json(self, kind: type[list[Any]] | type[dict[str, Any]]) -> tuple[str, Any]:
        """Return the text of a file that is one JSON array or object, and its value."""
        text = self._text()
        try:
            value = decode_json(text)
        except json.JSONDecodeError as error:
            what = f"the JSON ends or breaks here (column {error.colno:,}: {error.msg})"
            raise self._error(f", line {error.lineno}: {what}") from None
        except RecursionError as error:
            raise self._error(f", line 1: the JSON nests too deeply ({error})") from None
        if not isinstance(value, kind):
            expected = "a JSON array" if kind is list else "a JSON object"
            problem = value.problem if isinstance(value, Flaw) else f"got {shown(value, 60)}; expected {expected}"
            raise self._error(f", line 1: {problem}")
        return text, value

    def _csv(
        self, columns: Sequence[str], optional: Sequence[str], delimiter: str
    ) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Yield (first line, cells by column, problem or "") of each row of a CSV file that is not blank."""
        # newline="\n" keeps carriage returns and Unicode line separators inside a text.
        text = self._text()
        reader = csv.reader(io.StringIO(text, newline="\n"), strict=True, delimiter=delimiter)
        header: list[str] = []
        start = 1
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
                row = dict(zip(header, cells, strict=False))
                named = {name: row.get(name) for name in columns}
                problem = ""
                if self.own_spec and stripped == header:
                    problem = "repeats the header; expected a row of data"
                elif len(cells) != len(header):
                    problem = f"got {len(cells)} columns; expected {len(header)}: {', '.join(header)}"
                yield line, named, problem
        except csv.Error as error:
            first = text.lstrip().partition("\n")[0]
            remedy = "" if delimiter in first else self._name_delimiter(first)
            raise self._error(f", line {start}: the CSV row that begins here breaks ({error})", remedy) from None
        if not header:
            raise self._error(f", line 1: no header; expected the columns {', '.join(columns)}")

    def _parquet(self, columns: Sequence[str], optional: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of a Parquet file; errors as for `_csv`."""
        try:
            file = pq.ParquetFile(self.path)
            names = file.schema_arrow.names
            self._check_columns(names, columns)
            wanted = [*columns, *(name for name in optional if name in names)]
            rows: list[dict[str, Any]] = file.read(columns=wanted).to_pylist()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{self.path}: not a readable Parquet file ({self.path.stat().st_size:,} bytes: {error})",
                remedy="the file is truncated or not Parquet; write or copy it again",
            ) from None
        return rows

    def _check_columns(self, header: Sequence[str], columns: Sequence[str], place: str = "") -> None:
        for name in columns:
            if header.count(name) == 1:
                continue
            how, hint = "there more than once", ""
            if name not in header:
                how, hint = "missing", did_you_mean(name, header)
            remedy = damaged(own=False)
            if self.own_spec:
                remedy = f"name the file's own column under `columns:` in {self.own_spec}"
                remedy += f", perhaps\n    {self.suggest(header)}" if self.suggest else ""
                if len(header) == 1:
                    remedy = self._name_delimiter(header[0]) or remedy
            found = cut(", ".join(map(repr, header)))
            raise UserError(f"{self.path}{place}: column {name!r} is {how}; found {found}.{hint}", remedy)

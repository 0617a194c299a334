"""The rows of a sweep's results file: one for each evaluation of a training, and one for each scored point.

`rows_of_run` says what a row of the probe has, besides the value of each axis; `overrides` are those of the call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import CHECKSUMS, read_results, with_checksums, write_whole
from eval.compare.reading import Row, typed


def read_rows(file: Path) -> list[Row]:
    """Return the rows of the probe, as `read_all_rows`."""
    return [row for row in read_all_rows(file) if "step" in row]


def read_all_rows(file: Path) -> list[Row]:
    """Return the rows of a sweep's file, none without a file; UserError if it holds no rows, or was edited."""
    if not file.is_file():
        return []
    content = read_results(dict[str, list[Row]], file, "the rows of a sweep", "restore it, or name another: --results")
    return content.get("rows", [])


def write_rows(rows: Sequence[Row], file: Path) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sums = json.dumps(with_checksums({"rows": rows})[CHECKSUMS])
    write_whole(file, f'{{"rows": [\n{lines}\n],\n"{CHECKSUMS}": {sums}}}\n')


def refuse_other_overrides(rows: Iterable[Row], asked: Mapping[str, str], file: Path) -> None:
    """Raise UserError if some rows were measured with other overrides than this call: one table would show both."""

    def words(overrides: Mapping[str, str]) -> str:
        return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the file's own settings"

    for other in (row.get("overrides", {}) for row in rows):
        if other != asked:
            raise UserError(
                f"{file}: has rows measured with {words(other)}; this call asks for {words(asked)}",
                remedy="keep these in another file, --results FILE" + (f", or give {words(other)}" if other else ""),
            )


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    wanted = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in wanted.items())]

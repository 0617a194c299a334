"""Files of rows: columns that few rows need are only in files that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.row_files import jsonl_rows, parquet_rows, write_rows
from tests.tiny import make_sample


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("change", "columns"),
    [
        ({}, set()),
        ({"rejected": ["a fish", "fishes"]}, {"rejected"}),
        ({"habit": ["a stone"]}, {"habit", "subset"}),
    ],
)
def test_a_column_is_written_where_a_row_has_a_value(
    tmp_path: Path, ending: str, change: dict[str, Any], columns: set[str]
) -> None:
    rows = [make_sample(0).model_dump(), make_sample(1, meta={"line": 3}, **change).model_dump()]
    path = tmp_path / f"rows.{ending}"
    write_rows(rows, path)
    read = parquet_rows(path) if ending == "parquet" else jsonl_rows(path)
    (_, first, _), (line, second, problem) = read
    assert (line, problem, second["meta"]) == (2, None, {"line": 3})
    assert set(first) == set(rows[0]) - {"rejected", "habit", "subset", "conversation"} | columns
    assert {name: second[name] for name in columns} == {name: rows[1][name] for name in columns}

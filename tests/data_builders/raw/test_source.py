"""Splits count the rows that filters leave out."""

from __future__ import annotations

from data_builders.raw.source import SplitRows


def test_each_filter_counts_what_the_one_before_it_left() -> None:
    rows = SplitRows([1, 2, 3, 4, 5])
    rows.keep("odd", "even numbers are left out", [1, 3, 5])
    rows.keep("small", "large numbers are left out", [1, 3], unit="numbers")
    assert [(step.name, step.rows_in, step.rows_out, step.unit) for step in rows.filters] == [
        ("odd", 5, 3, "rows"),
        ("small", 3, 2, "numbers"),
    ]
    texts = rows.become(["one", "three"])
    assert (list(texts.rows), texts.rows_read, texts.filters) == (["one", "three"], 5, rows.filters)

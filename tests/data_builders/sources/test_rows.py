"""What several sources do with their rows."""

from __future__ import annotations

from data_builders.sources.rows import first_of_each, not_in_test


def test_the_first_row_of_each_key_stays_in_order() -> None:
    assert first_of_each(["b1", "a1", "b2", "a2"], lambda row: row[0]) == ["b1", "a1"]


def test_a_row_that_shares_any_key_with_the_test_goes_but_an_empty_key_is_shared_with_nothing() -> None:
    rows, test = [("a", ""), ("b", "x"), ("c", "y")], [("a", ""), ("z", "y")]
    assert not_in_test(rows, test, lambda row: row[0], lambda row: row[1]) == [("b", "x")]

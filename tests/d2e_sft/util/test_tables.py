"""Tables as text, against tables written by hand."""

from __future__ import annotations

from d2e_sft.util.tables import markdown_table, percent, percent_interval, text_table


def test_markdown_columns_are_as_wide_as_their_longest_cell() -> None:
    expected = "| name |   n |\n| ---- | --- |\n| a    | 100 |\n| b    |   2 |"
    assert markdown_table(["name", "n"], [["a", "100"], ["b", "2"]], left=["name"]) == expected


def test_a_terminal_table_has_no_space_at_line_ends() -> None:
    assert text_table([("name", "n"), ("long name", ""), ("a", "1")]) == "name       n\nlong name\na          1"


def test_shares_are_shown_in_percent_with_one_decimal() -> None:
    assert [percent(0.6129), percent(1), percent(None)] == ["61.3", "100.0", "–"]
    assert percent_interval(0.5, 0.25, 0.875) == "50.0 [25.0, 87.5]"

"""Tables as text, against tables written by hand."""

from __future__ import annotations

from d2e_sft.util.tables import (
    harmless_markdown,
    inline_code,
    markdown_table,
    percent,
    percent_interval,
    text_table,
)


def test_markdown_columns_are_as_wide_as_their_longest_cell() -> None:
    expected = "| name |   n |\n| ---- | --- |\n| a    | 100 |\n| b    |   2 |"
    assert markdown_table(["name", "n"], [["a", "100"], ["b", "2"]], left=["name"]) == expected


def test_a_terminal_table_has_no_space_at_line_ends() -> None:
    assert text_table([("name", "n"), ("long name", ""), ("a", "1")]) == "name       n\nlong name\na          1"


def test_shares_are_shown_in_percent_with_one_decimal() -> None:
    assert [percent(0.6129), percent(1), percent(None)] == ["61.3", "100.0", "–"]
    assert percent_interval(0.5, 0.25, 0.875) == "50.0 [25.0, 87.5]"


def test_markdown_of_others_has_no_html_and_links_to_pages_alone() -> None:
    text = "[a](https://a.b) [b](#c) <b> [x](javascript:y) ![z](//w)"
    assert harmless_markdown(text) == "[a](https://a.b) [b](#c) &lt;b> [x]\\(javascript:y) ![z]\\(//w)"


def test_code_within_a_line_ends_where_it_should() -> None:
    assert inline_code("a") == "`a`"
    assert inline_code("a`b``c") == "``` a`b``c ```"

"""Wide Markdown in a terminal: tables are shown in parts, and nothing of them is lost."""

from __future__ import annotations

import pytest

from d2e_sft.util.tables import markdown_table
from d2e_sft.util.terminal.narrow import narrowed

COLUMNS = ["way", *(f"measure {n}" for n in range(12))]
ROWS = [[name, *(f"{n}.5" for n in range(12))] for name in (r"a \| b", "long name of a way", "c")]


@pytest.mark.parametrize("tight", [True, False])
def test_a_wide_table_is_shown_in_parts_that_repeat_the_first_column(tight: bool) -> None:
    table = markdown_table(COLUMNS, ROWS, left=("way",), tight=tight)
    assert max(map(len, table.splitlines())) > 100
    shown = narrowed(table)
    assert max(map(len, shown.splitlines())) <= 100
    parts = shown.split("\n\n")
    assert len(parts) == 2
    assert all(part.count("long name of a way") == 1 for part in parts)
    assert all(shown.count(f"measure {n} ") == 1 for n in range(12))
    assert parts[0].splitlines()[2].startswith(r"| a \| b ")
    assert ("|---" in shown) == tight


def test_what_fits_stays_and_prose_is_folded() -> None:
    table = markdown_table(["a", "b"], [["1", "2"]])
    assert narrowed(f"## Title\n\n{table}\n\nwords") == f"## Title\n\n{table}\n\nwords"
    assert narrowed("word " * 30).splitlines()[1].startswith("  word")


def test_several_columns_may_name_a_row_and_a_wide_cell_is_not_cut() -> None:
    rows = [["a", "b", "x" * 120, "1"], ["a", "c", "y", "2"]]
    shown = narrowed(markdown_table(["k", "l", "text", "n"], rows), keys=2)
    assert [part.splitlines()[0].split() for part in shown.split("\n\n")] == [
        ["|", "k", "|", "l", "|", "text", "|"],
        ["|", "k", "|", "l", "|", "n", "|"],
    ]
    assert "x" * 120 in shown

"""Tables on the screen."""

from __future__ import annotations

import pytest

from data_builders.commands.tables import print_table


def test_whole_numbers_get_commas_and_an_empty_line_follows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "rows"), [("a", 1_234_567), ("b", "none")])
    *lines, blank, end = capsys.readouterr().out.split("\n")
    assert ["a", "1,234,567"] in [line.split() for line in lines]
    assert (blank, end) == ("", "")

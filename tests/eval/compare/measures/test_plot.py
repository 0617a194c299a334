"""The plot of a comparison: a bar a result, in every format by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.measures.comparison import compare_measures
from eval.compare.measures.plot import chart, write_plot
from tests.eval.compare.measures.results import accuracy

FOUND = compare_measures("wiqa", {"A": accuracy([1, 1, 0, 1]), "B": accuracy([1, 0, 0, 0])})


def test_bars_are_as_long_as_the_scores() -> None:
    [panel] = chart(FOUND).axes
    assert [patch.get_width() for patch in panel.patches] == [75, 25]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["A", "B"]


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_name_says_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    write_plot(FOUND, tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_bytes().startswith(begins)


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ends in \.svg, \.png, \.pdf"):
        write_plot(FOUND, tmp_path / "plot.html")

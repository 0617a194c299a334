"""Which values of the paper's result tables are bold, underlined or starred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from d2e_sft.util.table import NONE
from eval.compare.paper_layouts import Source

Cell = tuple[int, int]  # the places of a row and of a column


class PaperValue(NamedTuple):
    """A score in percent or a time, None if missing; it is `partial` if the column has more sources."""

    percent: float | None
    sources: tuple[Source, ...] = ()
    partial: bool = False

    def __str__(self) -> str:
        return NONE if self.percent is None else f"{rounded(self.percent):.1f}{'†' * self.partial}"


def rounded(percent: float) -> float:
    """Round to one decimal, with ties up, as the paper does; tolerate a rounding error below a tie."""
    return math.floor(10 * percent + 0.5 + 1e-7) / 10


def best_of_blocks(values: Sequence[Sequence[PaperValue]], blocks: Sequence[str]) -> dict[Cell, int]:
    """(row, column) → 1 for the best values of a block, 2 for the second best; values that print alike share a rank.

    A block of one row has no best, one of two rows no second, and zeros are neither. Only averages over the same
    sources are compared.
    """
    ranks: dict[Cell, int] = {}
    for _, block in groupby(range(len(values)), key=blocks.__getitem__):
        places = list(block)
        for column in range(len(values[places[0]])):
            rivals = {place: value for place in places if (value := values[place][column]).percent is not None}
            if len({value.sources for value in rivals.values()}) > 1:
                rivals = {place: value for place, value in rivals.items() if not value.partial}
            shown = {place: rounded(value.percent or 0.0) for place, value in rivals.items()}
            order = sorted({*shown.values()} - {0.0}, reverse=True)[: min(2, len(shown) - 1)]
            ranks |= {(place, column): 1 + order.index(v) for place, v in shown.items() if v in order}
    return ranks


def above(values: Sequence[Sequence[PaperValue]], rivals: Mapping[int, Sequence[int]]) -> set[Cell]:
    """The values of rows that print above those of all their rivals, with the same sources."""
    cells = set[Cell]()
    for place, places in rivals.items():
        for column, (percent, sources, _) in enumerate(values[place]):
            known = [values[rival][column] for rival in places if values[rival][column].sources == sources]
            percents = [rounded(value.percent) for value in known if value.percent is not None]
            if percent is not None and percents and rounded(percent) > max(percents):
                cells.add((place, column))
    return cells

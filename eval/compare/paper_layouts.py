"""The columns of the paper's result tables, and which of their values are bold, underlined or starred."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from d2e_sft.util.table import NONE

Layout = Literal["piper", "tuned", "ablation", "sensitivity", "cost", "refiner", "ood"]
Source = tuple[str, str]  # dataset, relation
Cell = tuple[int, int]  # the places of a row and of a column
ANY, TRAINING = "*", "training"  # sources of times: any dataset, and no evaluation


@dataclass(frozen=True)
class PaperColumn:
    """One column: its name in JSON (`temporal/average`), the scores that it averages, a heading over columns."""

    key: str
    header: str
    sources: tuple[Source, ...]
    over: str = ""


_HEADERS = {
    "tempreason": "Tem.",
    "timeqa": "Tim.",
    "tracie": "Tra.",
    "mctaco": "Mct.",
    "cider": "Cid.",
    "cster": "Cst.",
    "cosmosqa": "Cos.",
    "ecare": "Eca.",
    "ifqa": "Ifq.",
    "wiqa": "Wiq.",
    "ester": "Est.",
}
_PIPER: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "temporal": ("Temporal", "T", ("tempreason", "timeqa", "tracie", "mctaco", "cider")),
    "causal": ("Causal", "Ca", ("cster", "cosmosqa", "ecare", "cider")),
    "counterfactual": ("Counterfactual", "Co", ("cster", "cosmosqa", "ifqa", "wiqa")),
    "subevent_conditional": ("Subevent&Conditional", "S&C", ("ester", "cider")),
}


def _average(relation: str, header: str, over: str = "") -> PaperColumn:
    sources = tuple((dataset, relation) for dataset in _PIPER[relation][2])
    return PaperColumn(f"{relation}/average", header, sources, over)


_FIFTEEN = tuple(
    column
    for relation, (over, _, datasets) in _PIPER.items()
    for column in (
        *(PaperColumn(f"{relation}/{own}", _HEADERS[own], ((own, relation),), over) for own in datasets),
        _average(relation, "Avg.", over),
    )
)
_FOUR = tuple(_average(relation, short) for relation, (_, short, _) in _PIPER.items())
LAYOUTS: Mapping[Layout, tuple[PaperColumn, ...]] = {
    "piper": _FIFTEEN,
    "tuned": _FIFTEEN,
    "ablation": _FIFTEEN,
    "sensitivity": _FOUR,
    "refiner": _FOUR,
    # The sets of appendix G have one relation each; any relation in the data counts (`*`).
    "ood": (
        PaperColumn(
            "cider", "CIDER", tuple(("cider", relation) for relation, own in _PIPER.items() if "cider" in own[2])
        ),
        PaperColumn("storycloze", "SCT", (("storycloze", "*"),)),
        PaperColumn("socialiqa", "SocialIQA", (("socialiqa", "*"),)),
        PaperColumn("alphanli", "αNLI", (("alphanli", "*"),)),
    ),
    # Not scores: minutes of training, and milliseconds a sample of each relation.
    "cost": (
        PaperColumn("train", "Train, min", ((TRAINING, "*"),)),
        *(
            PaperColumn(f"{relation}/ms", f"{short}, ms", ((ANY, relation),))
            for relation, (_, short, _) in _PIPER.items()
        ),
    ),
}


def datasets_of(layout: Layout) -> set[str]:
    """The datasets that a layout has a column for; those of the scored results for times."""
    return {dataset for column in LAYOUTS["piper" if layout == "cost" else layout] for dataset, _ in column.sources}


def own_datasets(layout: Layout) -> set[str]:
    """The datasets that identify a layout's benchmark: CIDER belongs to both PIPER and the other sets."""
    return datasets_of(layout) - {"cider"}


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

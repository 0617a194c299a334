"""The columns of the paper's result tables: which dataset under which relation stands where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Layout = Literal["piper", "tuned", "ablation", "sensitivity", "cost", "refiner", "ood"]
Source = tuple[str, str]  # dataset, relation
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

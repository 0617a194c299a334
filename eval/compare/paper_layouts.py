"""The columns of the paper's result tables: which dataset under which relation stands where.

A column averages its sources in two steps: over the datasets of a relation, or over the relations of a dataset. Both
are plain means of the rows' scores, as the paper averages, whatever the rows' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Layout = Literal["piper", "ablation", "sensitivity", "ood"]
Source = tuple[str, str]  # dataset, relation


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name in JSON, such as `temporal/tempreason` or `temporal/average`.
        header: its heading.
        sources: the scores that it averages; one for a dataset's own column.
        average: whether it is an average over the columns before it.
    """

    key: str
    header: str
    sources: tuple[Source, ...]
    average: bool = False


@dataclass(frozen=True)
class Head:
    """A heading over several columns; without text where there is but one row of headings."""

    text: str
    columns: tuple[Column, ...]


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
_CIDER = tuple(("cider", relation) for relation, (_, _, datasets) in _PIPER.items() if "cider" in datasets)


def _relation_head(relation: str) -> Head:
    name, _, datasets = _PIPER[relation]
    own = [Column(f"{relation}/{dataset}", _HEADERS[dataset], ((dataset, relation),)) for dataset in datasets]
    sources = tuple((dataset, relation) for dataset in datasets)
    return Head(name, (*own, Column(f"{relation}/average", "Avg.", sources, average=True)))


_FIFTEEN = tuple(_relation_head(relation) for relation in _PIPER)
_RELATIONS = Head(
    "",
    tuple(
        Column(f"{relation}/average", short, tuple((dataset, relation) for dataset in datasets), average=True)
        for relation, (_, short, datasets) in _PIPER.items()
    ),
)
# The sets of appendix G have one relation each; whichever a build gives them counts (`*`).
_OUT_OF_DISTRIBUTION = Head(
    "",
    (
        Column("cider", "CIDER", _CIDER, average=True),
        Column("storycloze", "SCT", (("storycloze", "*"),)),
        Column("socialiqa", "SocialIQA", (("socialiqa", "*"),)),
        Column("alphanli", "αNLI", (("alphanli", "*"),)),
    ),
)

LAYOUTS: Mapping[Layout, tuple[Head, ...]] = {
    "piper": _FIFTEEN,
    "ablation": _FIFTEEN,
    "sensitivity": (_RELATIONS,),
    "ood": (_OUT_OF_DISTRIBUTION,),
}


def columns_of(layout: Layout) -> tuple[Column, ...]:
    """The columns from left to right."""
    return tuple(column for head in LAYOUTS[layout] for column in head.columns)


def datasets_of(layout: Layout) -> set[str]:
    """The datasets that a layout has a place for."""
    return {dataset for column in columns_of(layout) for dataset, _ in column.sources}


def own_datasets(layout: Layout) -> set[str]:
    """The datasets that tell which layout a benchmark is for: CIDER belongs to both PIPER and the other sets."""
    return datasets_of(layout) - {"cider"}

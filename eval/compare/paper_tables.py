"""The paper's result tables: which dataset under which relation stands in which column, and what value it gets.

A column averages its sources in two steps: over the datasets of a relation, or over the relations of a dataset. Both
are plain means of the rows' scores, as the paper averages, whatever the rows' sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from eval.score.scores import RunScores

Layout = Literal["piper", "ablation", "sensitivity", "ood"]
Source = tuple[str, str]  # dataset, relation


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: its name in JSON, such as `temporal/tempreason` or `temporal/average`.
        header: its heading.
        sources: the scores that it averages; one for a dataset's own column.
    """

    key: str
    header: str
    sources: tuple[Source, ...]


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
    return Head(name, (*own, Column(f"{relation}/average", "Avg.", sources)))


_FIFTEEN = tuple(_relation_head(relation) for relation in _PIPER)
_RELATIONS = Head(
    "",
    tuple(
        Column(f"{relation}/average", short, tuple((dataset, relation) for dataset in datasets))
        for relation, (_, short, datasets) in _PIPER.items()
    ),
)
# The sets of appendix G have one relation each; whichever a build gives them counts (`*`).
_OUT_OF_DISTRIBUTION = Head(
    "",
    (
        Column("cider", "CIDER", _CIDER),
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


@dataclass(frozen=True)
class Entry:
    """What becomes one row: the scores of a run in one setting on one benchmark.

    Attributes:
        label: how the row is called.
        block: rows of one block stand together, and the best of it is marked.
        note: what small print the label carries, such as the setting.
        facts: what JSON adds about the row.
    """

    label: str
    scores: RunScores
    block: str = ""
    note: str = ""
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Value:
    """A score in percent, None where nothing was scored.

    Attributes:
        partial: whether it averages fewer sources than the column should.
        sources: those that it averages.
    """

    percent: float | None
    partial: bool = False
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class TableRow:
    """One row of a table; `values` in the order of the layout's columns."""

    entry: Entry
    values: tuple[Value, ...]


@dataclass(frozen=True)
class PaperTable:
    """A table before it is written down in some format."""

    layout: Layout
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """From left to right."""
        return columns_of(self.layout)

    def blocks(self) -> Iterator[list[TableRow]]:
        """Rows that stand together."""
        for _, rows in groupby(self.rows, key=lambda row: row.entry.block):
            yield list(rows)

    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the best values: ties share the place, a block of one row has none."""
        found: set[tuple[int, int]] = set()
        start = 0
        for block in self.blocks():
            for column in range(len(self.columns)):
                values = _rivals({start + i: row.values[column] for i, row in enumerate(block)})
                if len(values) > 1:
                    found |= {(i, column) for i, value in values.items() if value == max(values.values())}
            start += len(block)
        return found


def paper_table(entries: Sequence[Entry], layout: Layout) -> PaperTable:
    """Arrange scores in a layout."""
    columns = columns_of(layout)
    rows = []
    for entry in entries:
        scores = source_scores(entry.scores)
        rows.append(TableRow(entry, tuple(_value(column, scores) for column in columns)))
    return PaperTable(layout, tuple(rows), tuple(_notes(rows, layout)))


def rounded(percent: float) -> float:
    """To one decimal, ties upwards, as the paper rounds; what lies a rounding error below a tie is one."""
    return math.floor(10 * percent + 0.5 + 1e-7) / 10


def source_scores(scores: RunScores) -> dict[Source, float]:
    """Mean of EM and F1, in percent, by dataset and relation (a dataset in two formats is one, sample by sample)."""
    sums: dict[Source, tuple[float, int]] = {}
    for group in scores.groups:
        total, n = sums.get((group.dataset, group.relation), (0.0, 0))
        sums[group.dataset, group.relation] = total + 100 * group.mean.mean * group.n, n + group.n
    return {source: total / n for source, (total, n) in sums.items()}


def _rivals(shown: Mapping[int, Value]) -> dict[int, float]:
    """The values that can be compared, rounded, since what prints alike ties: averages over the same sources alone."""
    values = {i: value for i, value in shown.items() if value.percent is not None}
    if len({value.sources for value in values.values()}) > 1:
        values = {i: value for i, value in values.items() if not value.partial}
    return {i: rounded(value.percent or 0.0) for i, value in values.items()}


def _value(column: Column, scores: Mapping[Source, float]) -> Value:
    found = {source: value for source in column.sources if (value := _one(source, scores)) is not None}
    if not found:
        return Value(None)
    partial = len(found) < len(column.sources)
    return Value(sum(found.values()) / len(found), partial=partial, sources=tuple(found))


def _one(source: Source, scores: Mapping[Source, float]) -> float | None:
    dataset, relation = source
    if relation != "*":
        return scores.get(source)
    found = [value for (name, _), value in scores.items() if name == dataset]
    return sum(found) / len(found) if found else None


def _notes(rows: Sequence[TableRow], layout: Layout) -> Iterator[str]:
    yield "Mean of exact match and token-level F1, in percent."
    if any(value.percent is None for row in rows for value in row.values):
        yield "– not scored."
    if any(value.partial for row in rows for value in row.values):
        yield "† average of fewer datasets than the paper's."
    for subset in dict.fromkeys(_subset(row.entry.scores) for row in rows):
        if subset:
            yield subset
    places = datasets_of(layout)
    left = {f"{g.dataset} ({g.relation})" for row in rows for g in row.entry.scores.groups if g.dataset not in places}
    if left:
        yield f"Scored but without a place in this table: {', '.join(sorted(left))}."


def _subset(scores: RunScores) -> str:
    if scores.subset is None:
        return ""
    limit = scores.subset.get("per_group")
    return f"Scored on a subset: at most {limit} samples of each row." if limit else "Scored on a subset."

"""Scores of runs arranged as in the paper's tables: 2, 4, 5 (PIPER), 6 (sensitivity to α), 10 (out of distribution).

Each value is the mean of exact match and token-level F1 in percent (PIPER, section 2.2). A dataset that was not scored
leaves a gap, and an average over fewer rows than the paper's is marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from eval.compare.paper_layouts import Column, Layout, Source, columns_of, datasets_of
from eval.score.scores import RunScores


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

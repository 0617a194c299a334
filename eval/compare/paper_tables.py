"""The paper's result tables: the value of each column, the best values, and the formats they are written in.

A column averages its sources in two steps: over the datasets of a relation, or over the relations of a dataset. Both
are plain means of the rows' scores, whatever the rows' sizes, as the paper averages.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from d2e_sft.util.files import write_whole
from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import NONE, Styled, Table
from eval.compare.paper_layouts import ANY, LAYOUTS, TRAINING, Column, Layout, Source, datasets_of
from eval.compare.published import Published
from eval.score.scores import RunScores

ENDINGS = {"markdown": "md", "latex": "tex", "json": "json"}  # format → ending of a file
_TITLES: dict[Layout, str] = {
    "piper": "PIPER.",
    "ablation": "Ablation on PIPER: DIE is distillation, DEE debiasing.",
    "sensitivity": "Sensitivity to the debias ratio α: averages over the datasets of a relation.",
    "refiner": "Who refined the contexts: averages over the datasets of a relation.",
    "ood": "Out of distribution; CIDER is averaged over its relations.",
    "cost": "Computational costs.",
}


@dataclass(frozen=True)
class Value:
    """A score in percent or a time, None if missing; it is `partial` if the column has more sources."""

    percent: float | None
    sources: tuple[Source, ...] = ()
    partial: bool = False

    @property
    def shown(self) -> float | None:
        return None if self.percent is None else rounded(self.percent)

    def __str__(self) -> str:
        return NONE if self.percent is None else f"{self.shown:.1f}{'†' * self.partial}"


@dataclass(frozen=True)
class Entry:
    """One row: the scores of a run in one setting on one benchmark.

    The best value of a `block` is marked. `note` is small print after the label, `facts` are fields in JSON, `minutes`
    are those of the training, `published` are the paper's values.
    """

    label: str
    scores: RunScores
    block: str = ""
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    minutes: float | None = None
    published: Published | None = None

    def values(self, layout: Layout) -> list[Value]:
        """The value of each column."""
        scores = self._times() if layout == "cost" else source_scores(self.scores)
        return [_value(column, scores) for column in LAYOUTS[layout]]

    def _times(self) -> dict[Source, float]:
        """Minutes of training, and milliseconds a sample by relation."""
        found = {} if self.minutes is None else {(TRAINING, ANY): self.minutes}
        timed = self.scores.timed.items()
        return found | {(ANY, relation): 1000 * one.seconds / one.samples for relation, one in timed}


@dataclass(frozen=True)
class PaperTable:
    """Entries in a layout; `compared` if published values were looked for."""

    layout: Layout
    entries: Sequence[Entry]
    compared: bool = False

    @property
    def table(self) -> Table:
        """The table to write."""
        columns, first = LAYOUTS[self.layout], "Models" if self.layout in ("piper", "ablation") else "Methods"
        header: list[Any] = [first, *(column.header for column in columns)]
        if columns[0].over:
            header = [("", first), *((column.over, column.header) for column in columns)]
        ranks, rows = self.ranks(), []
        for row, (entry, own) in enumerate(zip(self.entries, self._values(), strict=True)):
            marks = [ranks.get((row, place)) for place in range(len(own))]
            cells = [
                Styled.of(str(value), best=rank == 1, second=rank == 2) for value, rank in zip(own, marks, strict=True)
            ]
            rows.append((entry.block, [Styled.of(entry.label, note=entry.note), *cells]))
            if entry.published is not None:
                rows += [(entry.block, line) for line in entry.published.rows([value.shown for value in own])]
        return Table.in_blocks("", header, rows, _TITLES[self.layout], notes=list(self._notes()))

    def ranks(self) -> dict[tuple[int, int], int]:
        """(row, column) → 1 for the best values, 2 for the second best; ties share a rank.

        A block of one row has no best, one of two rows no second, and times and zeros have neither.
        """
        found: dict[tuple[int, int], int] = {}
        values = self._values()
        for _, block in groupby(range(len(self.entries)), key=lambda row: self.entries[row].block):
            rows = list(block)
            for column in range(len(LAYOUTS[self.layout])):
                rivals = {} if self.layout == "cost" else _rivals({row: values[row][column] for row in rows})
                order = sorted({*rivals.values()} - {0.0}, reverse=True)[: min(2, len(rivals) - 1)]
                found |= {(row, column): 1 + order.index(value) for row, value in rivals.items() if value in order}
        return found

    def to_json(self) -> str:
        """Values in percent, or times, not rounded, by the columns' keys; null if missing."""
        ranks, keys = self.ranks(), [column.key for column in LAYOUTS[self.layout]]
        rows = [
            {
                "label": entry.label,
                "block": entry.block,
                "setting": entry.scores.setting,
                **entry.scores.decoding,
                "model": entry.scores.model,
                **entry.facts,
                **({} if entry.published is None else {"published": asdict(entry.published)}),
                "values": {key: value.percent for key, value in zip(keys, values, strict=True)},
                "partial": [key for key, value in zip(keys, values, strict=True) if value.partial],
                **{
                    name: [key for place, key in enumerate(keys) if ranks.get((row, place)) == rank]
                    for rank, name in enumerate(("best", "second"), start=1)
                },
            }
            for row, (entry, values) in enumerate(zip(self.entries, self._values(), strict=True))
        ]
        content = {"layout": self.layout, "columns": keys, "rows": rows, "notes": list(self._notes())}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def render(self, form: str) -> str:
        """The table as text, with a newline at its end; `form` is a key of ENDINGS or `text`, for the terminal."""
        if form == "json":
            return self.to_json()
        if form == "latex":
            return latex_table(self.table, self.layout)
        return (self.table.markdown() if form == "markdown" else self.table.terminal()) + "\n"

    def write(self, stem: Path) -> list[Path]:
        """Write the table in each format of ENDINGS; returns the files."""
        files = [stem.with_name(f"{stem.name}.{ending}") for ending in ENDINGS.values()]
        for form, file in zip(ENDINGS, files, strict=True):
            write_whole(file, self.render(form))
        return files

    def _values(self) -> list[list[Value]]:
        return [entry.values(self.layout) for entry in self.entries]

    def _notes(self) -> Iterator[str]:
        subsets: dict[str, None] = {}
        if any(entry.published is not None for entry in self.entries):
            yield "Differences are ours minus published; ‡ our 95 % interval excludes the published value."
        elif self.compared:
            yield "No published row is of these models, methods and settings."
        if self.layout == "cost":
            yield "Milliseconds a sample of each relation in one process, its share of its batch's time."
            yield "Compare runs on one machine with one batch size. – not recorded, as with vLLM and endpoints."
            return
        yield "Mean of exact match and token-level F1, in percent."
        values = [value for own in self._values() for value in own]
        if any(value.percent is None for value in values):
            yield "– not scored."
        if any(value.partial for value in values):
            yield "† average of fewer datasets than the paper's."
        for subset in (entry.scores.subset for entry in self.entries if entry.scores.subset is not None):
            limit = subset.get("per_group")
            subsets[f": at most {limit} samples of each row" if limit else ""] = None
        yield from (f"Scored on a subset{which}." for which in subsets)
        groups = [group for entry in self.entries for group in entry.scores.groups]
        left = {f"{g.dataset} ({g.relation})" for g in groups if g.dataset not in datasets_of(self.layout)}
        if left:
            yield f"Scored but without a place in this table: {', '.join(sorted(left))}."


def rounded(percent: float) -> float:
    """Round to one decimal, with ties up, as the paper does; tolerate a rounding error below a tie."""
    return math.floor(10 * percent + 0.5 + 1e-7) / 10


def source_scores(scores: RunScores) -> dict[Source, float]:
    """Mean of EM and F1, in percent, by dataset and relation; a dataset in two formats is averaged by sample."""
    sums: dict[Source, tuple[float, int]] = {}
    for group in scores.groups:
        total, n = sums.get((group.dataset, group.relation), (0.0, 0))
        sums[group.dataset, group.relation] = total + 100 * group.mean.mean * group.n, n + group.n
    return {source: total / n for source, (total, n) in sums.items()}


def _rivals(shown: Mapping[int, Value]) -> dict[int, float]:
    """The values that can be compared, rounded, since equal print ties: only averages over the same sources."""
    values = {row: value for row, value in shown.items() if value.percent is not None}
    if len({value.sources for value in values.values()}) > 1:
        values = {row: value for row, value in values.items() if not value.partial}
    return {row: rounded(value.percent or 0.0) for row, value in values.items()}


def _value(column: Column, scores: Mapping[Source, float]) -> Value:
    found = {}
    for dataset, relation in column.sources:
        own = [value for (name, of), value in scores.items() if name == dataset and relation in (of, "*")]
        if own:
            found[dataset, relation] = sum(own) / len(own)
    if not found:
        return Value(None)
    return Value(sum(found.values()) / len(found), tuple(found), len(found) < len(column.sources))

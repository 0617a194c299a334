"""The published values of a paper's tables, as data: a YAML file a paper, in percent.

A table of PIPER has the columns of a layout of `d2e table`, and a row says which of our rows it belongs to. Columns of
other papers name the measure and the options of a run that they are compared with.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_package_yaml
from d2e_sft.util.table import NONE, Styled, Table
from eval.compare.paper_layouts import LAYOUTS, Layout, PaperColumn
from eval.compare.runs import MeasuredRun
from eval.score.scores import RunScores
from eval.score.statistics import Interval

if TYPE_CHECKING:
    from eval.compare.compare import Comparison

PIPER = "piper"
_FOLDER = Path(__file__).with_suffix("")
PAPERS = tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))
# Ends of a model's name that do not make it another model.
_SAME_MODEL = r"(chat|instruct|hf|it|\d)*"


class PublishedRow(BaseModel):
    """A row of a published table; the extra keys of PIPER's are model, method, alpha, setting and refiner."""

    model_config = ConfigDict(extra="allow")
    name: str = ""
    options: dict[str, Any] = Field(default_factory=dict, alias="with")
    words: tuple[str, ...] = Field(alias="values")

    @field_validator("words", mode="before")
    @classmethod
    def _of_a_text(cls, text: Any) -> Any:
        return str(text).split()

    @property
    def values(self) -> tuple[float | None, ...]:
        """The numbers; None where the paper has a dash."""
        return tuple(None if word == NONE else float(word) for word in self.words)

    @property
    def facts(self) -> dict[str, Any]:
        return self.model_extra or {}

    @property
    def label(self) -> str:
        facts = self.facts.items()
        return self.name or ", ".join(f"α={value:g}" if key == "alpha" else str(value) for key, value in facts)


class PublishedTable(BaseModel):
    """A published table; `columns` are those of `layout`, or heading → `measure` and options of a run."""

    model_config = ConfigDict(extra="forbid")
    table: int | str
    page: int | None = None
    title: str
    layout: Layout | None = None
    columns: dict[str, dict[str, Any]] = Field(default_factory=dict)
    rows: list[PublishedRow]

    @property
    def where(self) -> str:
        place = f"Table {self.table}" if isinstance(self.table, int) else self.table
        return place if self.page is None else f"{place}, page {self.page}"

    def shown(self, paper: str) -> Table:
        layout = LAYOUTS[self.layout] if self.layout else ()
        header: list[Any] = [("", "row"), *((column.over, column.header) for column in layout)]
        if not layout or not layout[0].over:
            header = ["row", *([column.header for column in layout] or self.columns)]
        rows = [[row.label, *row.words] for row in self.rows]
        return Table.of(header, rows, f"{paper}, {self.where}: {self.title}")


class PublishedPaper(BaseModel):
    paper: str
    tables: list[PublishedTable]


@cache
def read_published(name: str) -> PublishedPaper:
    return PublishedPaper.model_validate(load_package_yaml(_FOLDER / f"{name}.yaml"))


def published_tables(name: str, layout: Layout | None = None) -> list[Table]:
    paper = read_published(name)
    return [table.shown(paper.paper) for table in paper.tables if layout in (None, table.layout)]


@dataclass(frozen=True)
class Published:
    """The published values of one of our rows, and which of them our 95 % interval excludes."""

    where: str
    values: tuple[float | None, ...]
    excluded: tuple[bool, ...]

    def rows(self, ours: Sequence[float | None]) -> list[list[Styled]]:
        """Return two rows of cells: the published values, and ours as printed minus these."""
        values, changes = [f"  published, {self.where}"], ["  difference"]
        for score, value, is_out in zip(ours, self.values, self.excluded, strict=True):
            values.append(NONE if value is None else f"{value:.1f}")
            change = None if score is None or value is None else round(score - value, 1) + 0.0
            changes.append(NONE if change is None else f"{change:+.1f}{'‡' * is_out}")
        return [[Styled.of(cell) for cell in line] for line in (values, changes)]


def published_row(layout: Layout, facts: Mapping[str, Any], scores: RunScores) -> Published | None:
    """Return the published row that has these facts of ours; None without one."""
    layouts = ("piper", "tuned") if layout in ("piper", "tuned") else (layout,)  # both have the same columns
    for table in read_published(PIPER).tables:
        for row in table.rows if table.layout in layouts else ():
            if all(_same(key, facts.get(key), value) for key, value in row.facts.items()):
                pairs = zip((interval_of(column, scores) for column in LAYOUTS[layout]), row.values, strict=True)
                excluded = (None not in (interval, value) and excludes(interval, value) for interval, value in pairs)  # type: ignore[arg-type]
                return Published(table.where, row.values, tuple(excluded))
    return None


def check_model(name: str) -> None:
    """Raise UserError if PIPER's tables have no model of this name; the empty one is any."""
    models = list(dict.fromkeys(row.facts["model"] for table in read_published(PIPER).tables for row in table.rows))
    if name and not any(_same("model", name, model) for model in models):
        raise UserError(
            f"published values of {name!r}: the paper has no such model.{did_you_mean(name, models)}",
            remedy=f"choose one of {', '.join(models)}",
        )


def excludes(interval: Interval, percent: float) -> bool:
    """Return whether an interval of fractions excludes a published value, which was rounded to 0.1."""
    return not 100 * interval.low - 0.05 <= percent <= 100 * interval.high + 0.05


def _same(key: str, ours: Any, published: Any) -> bool:
    if key != "model" or ours is None:
        return bool(ours == published)
    model, name = (re.sub(r"[^a-z0-9]|llm", "", str(text).lower()) for text in (ours, published))
    return re.fullmatch(re.escape(name) + _SAME_MODEL, model) is not None


def interval_of(column: PaperColumn, scores: RunScores) -> Interval | None:
    """Return the interval of a column's average; None if a group is missing or has a single sample.

    The distances of its bounds are the roots of the sums of squares of its groups', which are independent (Zou and
    Donner 2008).
    """
    weights, means = [], []
    for dataset, relation in column.sources:
        groups = [group for group in scores.groups if group.dataset == dataset and relation in (group.relation, "*")]
        sizes = Counter[str]()  # relation → rows: relations count alike, the formats of one by their rows
        for group in groups:
            sizes[group.relation] += group.n
        if sizes.total() <= 1:
            return None
        means += [group.mean for group in groups]
        weights += [group.n / sizes[group.relation] / len(sizes) for group in groups]
    if not means:
        return None
    sources = sum(weights)
    mean = sum(weight * interval.mean for interval, weight in zip(means, weights, strict=True)) / sources
    low, high = (
        math.hypot(*(weight * distance(interval) for interval, weight in zip(means, weights, strict=True))) / sources
        for distance in (lambda interval: interval.mean - interval.low, lambda interval: interval.high - interval.mean)
    )
    return Interval(mean, mean - low, mean + high)


def beside_published(comparison: Comparison, runs: Sequence[MeasuredRun]) -> Table | None:
    """Return a row for each published value whose column and row have a run's options; None without one."""
    system = str(runs[0].scores.get("system"))
    if system not in PAPERS:
        return None
    paper, lines = read_published(system), []
    scores = {block.name[0]: list(block.scores.values()) for block in comparison.blocks("measures", "measure", "unit")}
    for table in paper.tables:
        for row in table.rows:
            for (heading, column), value, word in zip(table.columns.items(), row.values, row.words, strict=True):
                name = column.get("measure", "")
                if name not in scores or value is None:
                    continue
                options = {key: setting for key, setting in column.items() if key != "measure"} | row.options
                cells = [
                    f"{100 * score.mean:.1f} ({100 * score.mean - value:+.1f}{'‡' * excludes(score, value)})"
                    if _has(run.scores.get("options") or {}, options)
                    else NONE
                    for run, score in zip(runs, scores[name], strict=True)
                ]
                if any(cell != NONE for cell in cells):
                    lines.append((f"{table.where}: {table.title}", [row.name, heading, word, *cells]))
    if not lines:
        return None
    caption = f"{paper.paper}, published values, and ours with the difference; ‡ our 95 % interval excludes the value."
    return Table.in_blocks("published", ["row", "measure", "value", *comparison.labels], lines, caption, keys=2)


def _has(options: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(str(options.get(key)) == str(value) for key, value in expected.items())

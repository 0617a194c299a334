"""A measure of one result: what each item adds to a score, so that results can be compared item by item.

A run keeps its measures as `measures.json` next to `scores.json`; `d2e score` makes them from predictions. A table is
read for its headline, and everything else is many tests at once. The headline's p-values are therefore corrected for
the number of results, the others together for results and measures (Holm).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as, write_whole
from eval.compare.paired import changes_to_first
from eval.score.counts import FORMS, bootstrap_counts, paired_counts, score_of
from eval.score.statistics import Difference, Interval

MEASURES_FILE = "measures.json"


class Measure(BaseModel):
    """One score as a function of its items' counts.

    Attributes:
        form: A key of `eval.score.counts.FORMS`.
        unit: Plural name of the items.
        gold: Digest of the gold answers, which must be equal in a comparison.
        counts: Item → as many numbers as the form takes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    form: str
    unit: str
    gold: str
    counts: dict[str, tuple[float, ...]]

    @model_validator(mode="after")
    def _check(self) -> Measure:
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}; expected one of {', '.join(FORMS)}")
        if len({len(row) for row in self.counts.values()}) != 1:
            raise ValueError("counts are empty or of different lengths; expected the same length for each item")
        return self

    @cached_property
    def interval(self) -> Interval:
        """The score with its interval over items."""
        return bootstrap_counts(self.form, list(self.counts.values()))


def digest(gold: Any) -> str:
    """Digest of gold answers given as plain JSON or dataclasses."""
    return hashlib.sha256(json.dumps(gold, sort_keys=True, default=vars).encode()).hexdigest()[:16]


def measure(name: str, form: str, unit: str, gold: str, counts: Mapping[str, Sequence[float]]) -> list[Measure]:
    """Make the measure, without items whose counts are all zero; empty if the score is undefined."""
    kept = {str(name): tuple(map(float, row)) for name, row in counts.items() if any(row)}
    if not kept or score_of(form, list(kept.values())) is None:
        return []
    return [Measure(name=name, form=form, unit=unit, gold=gold, counts=kept)]


def shares(name: str, unit: str, gold: str, right: Mapping[str, float]) -> list[Measure]:
    """Make the mean of one value for each item."""
    return measure(name, "share", unit, gold, {item: (value, 1) for item, value in right.items()})


def write_measures(measures: Sequence[Measure], folder: Path) -> None:
    """Write `FOLDER/measures.json`, one measure on each line."""
    lines = ",\n".join(one.model_dump_json() for one in measures)
    write_whole(folder / MEASURES_FILE, f"[{lines}]\n")


def read_measures(folder: Path) -> list[Measure]:
    """Read the measures of a folder of results; UserError if the file is missing or damaged."""
    path = folder / MEASURES_FILE
    again = "the same d2e eval writes it again from the answers that it kept, without decoding"
    if not path.is_file():
        raise UserError(f"{folder}: has scores, but no {MEASURES_FILE}, which holds them item by item", again)
    return read_json_as(list[Measure], path, "a list of measures", again)


@dataclass(frozen=True)
class MeasureRow:
    """One measure of all results, as fractions over n items; the first result has no change."""

    name: str
    unit: str
    n: int
    scores: tuple[Interval, ...]
    changes: tuple[Difference, ...]


@dataclass(frozen=True)
class MeasureComparison:
    """Results of one scorer; the first row is the headline. Some results lack `left_out`, or have other items."""

    bench: str
    labels: tuple[str, ...]
    rows: tuple[MeasureRow, ...]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, with scores as fractions."""
        return asdict(self)


def compare_measures(bench: str, results: Mapping[str, Sequence[Measure]]) -> MeasureComparison:
    """Compare results of one scorer, given by label.

    UserError if a result has no measure, they have none in common, or their items or gold answers differ.
    """
    for label, measures in results.items():
        if not measures:
            raise UserError(
                f"{label}: {bench} has scores, but none item by item, so there is nothing to compare",
                remedy="read its tables.md; openpi2 has them of schemata, states, complete, salience and pddl",
            )
    by_label = {label: {one.name: one for one in measures} for label, measures in results.items()}
    first, *others = by_label.values()
    names = [name for name in first if all(name in other for other in others)]
    if not names:
        raise UserError(
            f"{bench}: {' and '.join(results)} have no measure in common",
            remedy="compare results of one system, of the same task and options",
        )
    _check_same_items(bench, {label: own[names[0]] for label, own in by_label.items()})
    same_items = [name for name in names if len({frozenset(own[name].counts) for own in by_label.values()}) == 1]
    changes: dict[str, list[Difference]] = {}

    def change(one: Measure, other: Measure) -> Difference:
        return paired_counts(one.form, *([own.counts[item] for item in one.counts] for own in (one, other)))

    for family in (same_items[:1], same_items[1:]):
        found = changes_to_first([{name: own[name] for name in family} for own in by_label.values()], change)
        changes |= {name: [own[name] for own in found[1:]] for name in family}
    rows = [
        MeasureRow(
            name,
            first[name].unit,
            len(first[name].counts),
            tuple(own[name].interval for own in by_label.values()),
            tuple(changes[name]),
        )
        for name in same_items
    ]
    every = dict.fromkeys(name for own in by_label.values() for name in own)
    return MeasureComparison(bench, tuple(results), tuple(rows), tuple(n for n in every if n not in same_items))


def _check_same_items(bench: str, headlines: Mapping[str, Measure]) -> None:
    (first, one), *others = headlines.items()
    for label, other in others:
        strangers = sorted(one.counts.keys() ^ other.counts.keys())
        if strangers:
            raise UserError(
                f"{bench}: {first} ({len(one.counts):,} {one.unit}) and {label} ({len(other.counts):,}) are about "
                f"different {one.unit}: {len(strangers):,} are in one only, such as {strangers[0]!r}",
                remedy="predict the same ones with both; of runs with the same --max-samples and --seed",
            )
        if one.gold != other.gold:
            raise UserError(
                f"{bench}: {first} and {label} were scored against different gold answers to the same {one.unit}",
                remedy="score both against the same file",
            )

"""Compare results by their measures: intervals, and paired differences to the first result.

A table is read for its headline, and everything else is many tests at once. The headline's p-values are therefore
corrected for the number of results, the others together for results and measures (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from d2e_sft.util.errors import UserError
from eval.compare.measures.measure import Measure
from eval.compare.paired import changes_to_first
from eval.score.counts import paired_counts
from eval.score.statistics import Difference, Interval


@dataclass(frozen=True)
class MeasureRow:
    """One measure of all results, as fractions.

    Attributes:
        unit: what the n items are.
        scores: one for each result.
        changes: one for each result after the first.
    """

    name: str
    unit: str
    n: int
    scores: tuple[Interval, ...]
    changes: tuple[Difference, ...]


@dataclass(frozen=True)
class MeasureComparison:
    """Results of one scorer; the first row is the headline.

    Attributes:
        left_out: measures that some results lack, or have for other items.
    """

    bench: str
    labels: tuple[str, ...]
    rows: tuple[MeasureRow, ...]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, with scores as fractions."""
        return asdict(self)


def compare_measures(bench: str, results: Mapping[str, Sequence[Measure]]) -> MeasureComparison:
    """Compare results of one scorer, given by label.

    Raises:
        UserError: a result has no measure, the results have none in common, or their items or gold answers differ.
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
    for family in (same_items[:1], same_items[1:]):
        found = changes_to_first([{name: own[name] for name in family} for own in by_label.values()], _change)
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


def _change(first: Measure, other: Measure) -> Difference:
    counts = [[own.counts[item] for item in first.counts] for own in (first, other)]
    return paired_counts(first.form, *counts)

"""Compare results by their measures: intervals, and paired differences to the first result.

A table is read for its headline, and everything else is many tests at once. The headline's p-values are therefore
corrected for the number of results, the others together for results and measures (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from d2e_sft.util.errors import UserError
from eval.compare.measures.measure import Measure
from eval.score.counts import paired_counts
from eval.score.statistics import Difference, Interval, holm

Results = Mapping[str, Sequence[Measure]]  # by label


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


def compare_measures(bench: str, results: Results) -> MeasureComparison:
    """Compare results of one scorer.

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
    headline, *rest = [_row([own[name] for own in by_label.values()]) for name in same_items]
    tested = iter(holm([change for row in rest for change in row.changes]))
    rows = [
        replace(headline, changes=tuple(holm(headline.changes))),
        *(replace(row, changes=tuple(next(tested) for _ in row.changes)) for row in rest),
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


def _row(measures: Sequence[Measure]) -> MeasureRow:
    first = measures[0]
    rows = [[own.counts[item] for item in first.counts] for own in measures]
    changes = [paired_counts(first.form, rows[0], other) for other in rows[1:]]
    return MeasureRow(first.name, first.unit, len(rows[0]), tuple(own.interval for own in measures), tuple(changes))

"""Results side by side by their measures: intervals, and paired differences to the first result.

The headline's p-values are corrected for the number of results, those of all other measures together for results and
measures (Holm): a table is read for its headline, and the rest of it is many tests at once.
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
        n: how many items there are, and `unit` what they are.
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
        left_out: measures that not all results have, or not of the same items.
    """

    bench: str
    labels: tuple[str, ...]
    rows: tuple[MeasureRow, ...]
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists, scores as fractions."""
        return asdict(self)


def compare_measures(bench: str, results: Results) -> MeasureComparison:
    """Compare results of one scorer.

    Raises:
        UserError: a result has no measure, two have none in common, or they are about other items or other gold.
    """
    first, *others = results.values()
    for label, measures in results.items():
        if not measures:
            raise UserError(
                f"{label}: {bench} has scores, but none item by item, so there is nothing to compare",
                remedy="read its tables.md; openpi2 has them of schemata, states, complete, salience and pddl",
            )
    names = [one.name for one in first if all(one.name in {own.name for own in other} for other in others)]
    if not names:
        raise UserError(
            f"{bench}: {' and '.join(results)} have no measure in common",
            remedy="compare results of one system, of the same task and options",
        )
    by_label = {label: {one.name: one for one in measures} for label, measures in results.items()}
    _check_same_items(bench, {label: own[names[0]] for label, own in by_label.items()})
    alike = [name for name in names if len({frozenset(own[name].counts) for own in by_label.values()}) == 1]
    rows = [_row([own[name] for own in by_label.values()]) for name in alike]
    every = dict.fromkeys(one.name for measures in results.values() for one in measures)
    left_out = tuple(name for name in every if name not in alike)
    return MeasureComparison(bench, tuple(results), tuple(_corrected(rows)), left_out)


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
    ids = list(first.counts)
    rows = [[own.counts[item] for item in ids] for own in measures]
    changes = [paired_counts(first.form, rows[0], other) for other in rows[1:]]
    return MeasureRow(first.name, first.unit, len(ids), tuple(own.interval for own in measures), tuple(changes))


def _corrected(rows: Sequence[MeasureRow]) -> list[MeasureRow]:
    headline, *others = rows
    tested = iter(holm([change for row in others for change in row.changes]))
    return [
        replace(headline, changes=tuple(holm(headline.changes))),
        *(replace(row, changes=tuple(next(tested) for _ in row.changes)) for row in others),
    ]

"""Tables of measures by subset: for one run, and for several with differences to the first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from d2e_sft.data.sample import ENOUGH_ROWS, SUBSETS, Subset
from d2e_sft.util.table import NONE, Table, percent
from eval.compare.compare import KindOfQuestion
from eval.compare.figures import corrected_p, mean_of, p_value, points, star, with_interval
from eval.compare.subset_comparison import DatasetComparison, RunSubsets, SmallSubset, SubsetComparison
from eval.score.scores import Scores
from eval.score.statistics import Difference
from eval.score.subsets import AVERAGE

_ANSWERS = (
    "Answers on conflict rows. How often the answer is the habit; the memorisation ratio M_R (Zhou et al., all rows); "
    "the shares of outputs with the context's answer only, the habit only, both, neither"
)
_OWN_HABIT = (
    "Does the model have the habit? How often its answer to conflict rows without the context is the habit, the "
    "number of these rows, and its accuracy on them with the context"
)
_KINDS = (
    "By what the questions ask for: accuracy (exact match) in percent with 95 % intervals; “Which company …?” asks "
    "for a company"
)


def subset_tables(scores: Scores) -> list[Table]:
    """One run's measures, a row for each subset of a dataset; empty where no row is tagged."""
    lines: list[list[object]] = []
    for own in scores.subsets:
        for name, one in own.subsets.items():
            shares = (one.accuracy, one.habit_rate, one.memorisation_ratio)
            lines.append([own.dataset, name, one.n, *map(with_interval, shares)])
        if own.gap is not None:
            lines.append([own.dataset, "gap", None, with_interval(own.gap), None, None])
    tagged = sum(one.n for own in scores.subsets if own.dataset != AVERAGE for one in own.subsets.values())
    caption = (
        "By subset: accuracy (exact match) in percent with 95 % intervals; gap = aligned − conflict; habit rate: the "
        "answer is the habit; M_R: memorisation ratio." + _untagged(scores.overall.n - tagged)
    )
    columns = ["dataset", "subset", "n", "accuracy", "habit rate", "M_R"]
    return [Table.of(columns, lines, caption, keys=2)] if lines else []


def small_note(subsets: Iterable[SmallSubset]) -> str:
    """The footnote on subsets that have too few rows to compare; empty without any."""
    told = [
        f"{one.dataset}, {one.subset}, {one.n} row{'s' * (one.n > 1)}, right: "
        + ", ".join(f"{label} {count}" for label, count in one.right.items())
        for one in subsets
    ]
    remedy = "A larger `test`, or d2e data build --swap-test 1, gives more."
    few = f"Too few rows to compare by subset (fewer than {ENOUGH_ROWS})"
    return f"{few}: {'; '.join(told)}. {remedy}" if told else ""


def subset_comparison_tables(comparison: SubsetComparison, *, detail: bool = False) -> list[Table]:
    """Accuracies and gap, answers on conflict rows, the model's own habit, and differences to the first run.

    `detail` shows both p-values, not only the corrected one.
    """

    def own_habit(run: RunSubsets) -> list[str]:
        own = run.own_habit
        return [NONE] if own is None else [with_interval(own.rate), f"{own.n:,}", with_interval(own.accuracy)]

    tables = [
        accuracy_table(comparison),
        _table(comparison.datasets, _ANSWERS, ["habit rate", "M_R", "context", "habit", "both", "neither"], _answers),
        _table(comparison.datasets, _OWN_HABIT, ["habit unread", "n", "conflict of these"], own_habit),
        change_table(comparison, p_value if detail else corrected_p),
    ]
    return [table for table in tables if len(table.frame)]


def accuracy_table(comparison: SubsetComparison) -> Table:
    """The accuracy of each run on each subset, and the gap."""
    sizes = "; ".join(
        f"{own.dataset} {' + '.join(f'{n:,} {name}' for name, n in own.sizes.items())}" for own in comparison.datasets
    )
    gap = any(run.scores.gap is not None for own in comparison.datasets for run in own.runs)
    caption = (
        f"By subset ({sizes}): accuracy (exact match) in percent with 95 % intervals"
        f"{'; gap = aligned − conflict' * gap}.{_untagged(comparison.untagged)}{_tagged_by(comparison)}"
    )
    names = _names(comparison)

    def cells(run: RunSubsets) -> list[str]:
        subsets = run.scores.subsets
        scores = [subsets[name].accuracy if name in subsets else None for name in names]
        return [with_interval(score) for score in (*scores, *[run.scores.gap] * gap)]

    return _table(comparison.datasets, caption, [*names, *["gap"] * gap], cells)


def change_table(comparison: SubsetComparison, p: Callable[[Difference | None], str] = corrected_p) -> Table:
    """The paired differences of each run to the first, with p; without rows for one run."""
    names = _names(comparison)

    def cells(run: RunSubsets) -> list[str]:
        found = [run.changes.get(name) for name in names]
        return [text for one in found for text in (points(one), p(one))]

    caption = (
        f"Paired difference to {comparison.datasets[0].runs[0].label} in percentage points with 95 % intervals; p of "
        f"a sign-flip test, {'in brackets ' * (p is p_value)}corrected for a dataset's runs and subsets (Holm); * "
        "where that is below 0.05"
    )
    return _table(comparison.datasets, caption, [title for name in names for title in (f"Δ {name}", "p")], cells)


def kind_tables(kinds: Sequence[KindOfQuestion]) -> list[Table]:
    """Each run's accuracy by what the questions ask for, on all rows and on conflict rows; empty without kinds."""
    measures = ["accuracy", *["conflict"] * any(one.conflict for one in kinds)]
    lines = [
        (
            f"{one.kind} ({one.n:,}{f', {one.conflict:,} conflict' * bool(one.conflict)})",
            [run.label, *(with_interval(run.scores.get(name)) + star(run.changes.get(name)) for name in measures)],
        )
        for one in kinds
        for run in one.runs
    ]
    if not lines:
        return []
    first, *others = kinds[0].runs
    caption = _KINDS + f"; * differs from {first.label} (corrected p below 0.05)" * bool(others)
    return [Table.in_blocks("question asks for", ["run", *measures], lines, caption)]


def _names(comparison: SubsetComparison) -> list[Subset]:
    """The subsets that some dataset has."""
    return [name for name in SUBSETS if any(name in own.sizes for own in comparison.datasets)]


def _answers(run: RunSubsets) -> list[str]:
    conflict = run.scores.subsets.get("conflict")
    if conflict is None or conflict.contains is None:
        return [NONE]
    cells = conflict.contains
    shares = (cells.context_only, cells.habit_only, cells.both, cells.neither)
    return [with_interval(conflict.habit_rate), mean_of(conflict.memorisation_ratio), *map(percent, shares)]


def _table(
    datasets: Sequence[DatasetComparison],
    caption: str,
    columns: Sequence[str],
    cells: Callable[[RunSubsets], list[str]],
) -> Table:
    """A line for each run that has a value, in a block for each of several datasets."""
    found = [(own.dataset, [run.label, *cells(run)]) for own in datasets for run in own.runs]
    kept = [(dataset, line) for dataset, line in found if set(line[1:]) != {NONE}]
    return Table.in_blocks("dataset" if len(datasets) > 1 else "", ["run", *columns], kept, caption)


def _tagged_by(comparison: SubsetComparison) -> str:
    if not comparison.tagged_by:
        return ""
    others = comparison.strangers
    said = f"; {', '.join(others)} {'are' if len(others) > 1 else 'is'} of another model" if others else ""
    return f" Subsets by the habit of {', '.join(comparison.tagged_by)}{said}."


def _untagged(count: int) -> str:
    return f" {count:,} untagged sample{'s are' if count > 1 else ' is'} left out." if count else ""

"""Measures by subset as Markdown, narrow enough for a terminal: a row a run; and a verdict a run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from d2e_sft.data.sample import Subset
from d2e_sft.util.tables import markdown_cell, markdown_table, percent
from eval.compare.compare import Comparison
from eval.compare.subset_comparison import ENOUGH, MARGIN, DatasetComparison, RunSubsets, SubsetComparison
from eval.compare.tables import comparison_tables, points, short_p, with_interval
from eval.score.scores import Scores
from eval.score.statistics import Difference
from eval.score.subsets import AVERAGE, AnswerCells

_WIDTH = 99
_MAIN: tuple[Subset, ...] = ("conflict", "aligned")
# Which subsets stand side by side, so that no table is wider than a terminal.
_ACCURACIES: tuple[tuple[Subset, ...], ...] = (("aligned", "conflict"), ("gold", "irrelevant", "unanswerable"))
_DIFFERENCES: tuple[tuple[Subset, ...], ...] = (("aligned", "conflict"), ("gold", "irrelevant"), ("unanswerable",))
_ABOUT_ANSWERS = (
    "Answers on conflict rows: how often the answer is the habit; the memorisation ratio M_R (Zhou et al., all rows); "
    "the shares of outputs with the context's answer alone, the habit alone, both, neither"
)
_ABOUT_OWN_HABIT = (
    "Does the model have the habit? How often its answer to conflict rows without the context is the habit, how many "
    "rows that is, and its accuracy with the context on these"
)


def all_tables(comparison: Comparison) -> str:
    """The tables by group and, where rows are tagged, those by subset."""
    by_subset = [] if comparison.subsets is None else [subset_comparison_tables(comparison.subsets)]
    return "\n\n".join([comparison_tables(comparison), *by_subset])


def subset_table(scores: Scores) -> str:
    """One run's measures by subset, a row a subset of a dataset; empty where no row is tagged."""
    if not scores.subsets:
        return ""
    lines = []
    for own in scores.subsets:
        for name, one in own.subsets.items():
            shares = (one.accuracy, one.habit_rate, one.memorisation_ratio)
            lines.append([own.dataset, name, f"{one.n:,}", *map(with_interval, shares)])
        if own.gap is not None:
            lines.append([own.dataset, "gap", percent(None), with_interval(own.gap), percent(None), percent(None)])
    columns = ["dataset", "subset", "n", "accuracy", "habit rate", "M_R"]
    tagged = sum(one.n for own in scores.subsets if own.dataset != AVERAGE for one in own.subsets.values())
    about = (
        "By subset: accuracy (exact match) in percent with 95 % intervals; gap = aligned − conflict; habit rate: the "
        "answer is the habit; M_R: memorisation ratio." + _untagged(scores.overall.n - tagged)
    )
    return f"{_wrapped(about)}\n\n{_table(columns, lines, left=('dataset', 'subset'))}"


def subset_comparison_tables(comparison: SubsetComparison) -> str:
    """Runs by subset: accuracies and gap, what is answered on conflict rows, differences."""
    datasets = comparison.datasets
    reference, *others = datasets[0].runs
    gap = ["gap"] if any(run.scores.gap is not None for own in datasets for run in own.runs) else []
    sizes = "; ".join(f"{own.dataset} {_sizes(own)}" for own in datasets)
    parts = [
        _wrapped(
            f"By subset ({sizes}): accuracy (exact match) in percent with 95 % intervals"
            f"{'; gap = aligned − conflict' if gap else ''}.{_untagged(comparison.untagged)}"
        )
    ]
    for names in _together(datasets, _ACCURACIES):
        own_gap = gap if "conflict" in names else []
        parts.append(_rows(datasets, [*names, *own_gap], partial(_accuracies, names=names, gap=own_gap)))
    if any(_conflict_cells(run) is not None for own in datasets for run in own.runs):
        parts.append(_wrapped(_ABOUT_ANSWERS))
        parts.append(_rows(datasets, ["habit rate", "M_R", "context", "habit", "both", "neither"], _answers))
    if any(run.own_habit is not None for own in datasets for run in own.runs):
        parts.append(_wrapped(_ABOUT_OWN_HABIT))
        parts.append(_rows(datasets, ["habit unread", "n", "conflict of these"], _own_habit))
    if others:
        parts.append(
            _wrapped(
                f"Paired difference to {reference.label} in percentage points with 95 % intervals; p of a sign-flip "
                "test, corrected for a dataset's runs and subsets (Holm); * where it is below 0.05"
            )
        )
        for names in _together(datasets, _DIFFERENCES):
            columns = [title for name in names for title in (f"Δ {name}", "p")]
            parts.append(_rows(datasets, columns, partial(_changes, names=names), others_alone=True))
    return "\n\n".join(parts)


def verdicts(comparison: SubsetComparison) -> list[str]:
    """What the verdicts' words mean, and then one line for each run but the first; empty without conflict rows."""
    own = comparison.headline
    reference, *others = own.runs
    if not others or "conflict" not in own.sizes:
        return []
    points = f"{100 * MARGIN:g} points"
    size = " and ".join(f"{own.sizes[name]:,} {name}" for name in _MAIN if name in own.sizes)
    aligned = f" and aligned not {points} lower (interval)" if "aligned" in own.sizes else ""
    words = (
        f"Verdict with {size} samples{' (average)' if own.dataset == AVERAGE else ''}: reads more = conflict higher "
        f"(corrected p below 0.05){aligned}; no difference = {'both intervals' if aligned else 'its interval'} within "
        f"{points}, of {ENOUGH} samples or more{' each' if aligned else ''}"
    )
    return [_wrapped(words), "\n".join(_verdict(run, reference.label) for run in others)]


def _verdict(run: RunSubsets, reference: str) -> str:
    changes = {name: points(run.changes[name]).removesuffix(" *") for name in _MAIN if name in run.changes}
    told = ", ".join(f"{name} {change}" for name, change in changes.items())
    return _wrapped(f"{run.label} against {reference}: {told}: {run.verdict}")


def _rows(
    datasets: Sequence[DatasetComparison],
    columns: Sequence[str],
    cells: Callable[[RunSubsets], list[str]],
    *,
    others_alone: bool = False,
) -> str:
    """A row a run; where there are several datasets, a block a dataset."""
    several = len(datasets) > 1
    lines = [
        [*([own.dataset] if several else []), run.label, *cells(run)]
        for own in datasets
        for run in own.runs[1 if others_alone else 0 :]
    ]
    names = [*(["dataset"] if several else []), "run"]
    told = [line for line in lines if set(line[len(names) :]) != {percent(None)}]
    return _table([*names, *columns], told, left=names)


def _together(datasets: Sequence[DatasetComparison], tables: Sequence[Sequence[Subset]]) -> list[list[Subset]]:
    """The columns of each table: its subsets that some dataset has; without those that none has."""
    present = {name for own in datasets for name in own.sizes}
    return [names for table in tables if (names := [name for name in table if name in present])]


def _accuracies(run: RunSubsets, names: Sequence[Subset], gap: Sequence[str]) -> list[str]:
    subsets = run.scores.subsets
    scores = [subsets[name].accuracy if name in subsets else None for name in names]
    return [with_interval(score) for score in (*scores, *([run.scores.gap] if gap else []))]


def _conflict_cells(run: RunSubsets) -> AnswerCells | None:
    conflict = run.scores.subsets.get("conflict")
    return None if conflict is None else conflict.contains


def _answers(run: RunSubsets) -> list[str]:
    cells = _conflict_cells(run)
    if cells is None:
        return [percent(None)] * 6
    conflict = run.scores.subsets["conflict"]
    ratio = None if conflict.memorisation_ratio is None else conflict.memorisation_ratio.mean
    shares = (cells.context_only, cells.habit_only, cells.both, cells.neither)
    return [with_interval(conflict.habit_rate), percent(ratio), *map(percent, shares)]


def _own_habit(run: RunSubsets) -> list[str]:
    own = run.own_habit
    return [percent(None)] * 3 if own is None else [with_interval(own.rate), f"{own.n:,}", with_interval(own.accuracy)]


def _changes(run: RunSubsets, names: Sequence[Subset]) -> list[str]:
    found = [run.changes.get(name) for name in names]
    return [text for one in found for text in (points(one), percent(None) if one is None else _corrected_p(one))]


def _corrected_p(change: Difference) -> str:
    return short_p(change.p_value if change.adjusted_p is None else change.adjusted_p)


def _sizes(own: DatasetComparison) -> str:
    return " + ".join(f"{n:,} {name}" for name, n in own.sizes.items())


def _untagged(count: int) -> str:
    return f" Without a tag, and not in it: {count:,} sample{'s' if count > 1 else ''}." if count else ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    escaped = [[markdown_cell(cell) for cell in line] for line in lines]
    return markdown_table(columns, escaped, left=left, tight=True)

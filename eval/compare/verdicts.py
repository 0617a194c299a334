"""A comparison as text: its tables, and at the end a verdict on each run against the first.

A run uses the context more if it is better on conflict rows, where the habit is wrong, and not worse on aligned ones.
Both are needed, because a method may trade one for the other.
"""

from __future__ import annotations

from dataclasses import replace

from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded, is_quiet
from eval.compare.compare import Block, Comparison
from eval.compare.figures import points, verdict_line
from eval.compare.measures import measure_table
from eval.compare.tables import comparison_tables, small_note
from eval.score.frame import AVERAGE
from eval.score.statistics import Difference

COMPARED = ("conflict", "aligned")  # what a verdict is about
MORE, LESS = "uses the context more", "uses the context less"
MARGIN = 0.03  # aligned accuracy, as a fraction, that a run may lose and still use the context more


def terminal_text(comparison: Comparison, *, groups: bool = True, detail: bool = False) -> str:
    """Return tables and verdicts; `groups=False` leaves out tables by group if the benchmark is about subsets."""
    hidden = comparison.is_about_subsets and not groups
    parts = [f"{comparison.bench}; tables by dataset, relation and format: --groups"] if hidden else []
    parts += [table.terminal() for table in tables_of(comparison, groups=not hidden, detail=detail)]
    return "\n\n".join([*parts, folded("\n".join(closing_lines(comparison, words=not is_quiet())))]).rstrip("\n")


def markdown_text(comparison: Comparison) -> str:
    tables = (table.markdown() for table in tables_of(comparison, detail=True))
    return "\n\n".join([*tables, *closing_lines(comparison)])


def tables_of(comparison: Comparison, *, groups: bool = True, detail: bool = False) -> list[Table]:
    if comparison.is_by_measures:
        return [measure_table(comparison)]
    return comparison_tables(comparison, groups=groups, detail=detail)


def closing_lines(comparison: Comparison, *, words: bool = True) -> list[str]:
    """Return differences of decoding, verdicts and what their `words` mean, and footnotes on rows left out."""
    meaning, bad = verdict_words(comparison) if words else "", comparison.bad_rows
    unscored = f"{bad:,} bad rows of {comparison.bench} are in no score (--skip-bad)" if bad else ""
    notes = [small_note(comparison), unscored]
    return [*filter(None, [comparison.decoding.line(), meaning]), *verdicts(comparison), *filter(None, notes)]


def verdicts(comparison: Comparison) -> list[str]:
    """Return a line for each run after the first: on its main score, or on subsets if the benchmark is about these."""
    by_subset = subset_verdicts(comparison)
    return by_subset if by_subset and comparison.is_about_subsets else [*_main_verdicts(comparison), *by_subset]


def main_change(comparison: Comparison, run: str) -> Difference:
    """Return a run's difference in the mean over all samples, which is one test a run, or in the first measure."""
    block, measure = comparison.main
    score = block.score(run, measure)
    assert score is not None
    assert score.change is not None
    return score.change if comparison.is_by_measures else replace(score.change, adjusted_p=None)


def _main_verdicts(comparison: Comparison) -> list[str]:
    block, measure = comparison.main
    first, *others = comparison.labels
    of = f"{block.sizes['']:,} {comparison.unit}"
    return [
        verdict_line(f"{label} against {first}: {measure}", main_change(comparison, label), of) for label in others
    ]


def verdict_words(comparison: Comparison) -> str:
    """Return what the words of verdicts on subsets mean; empty without such verdicts."""
    block = comparison.headline
    if block is None or len(comparison.labels) == 1 or "conflict" not in block.sizes:
        return ""
    margin = f"{100 * MARGIN:g} points"
    size = " and ".join(f"{block.sizes[name]:,} {name}" for name in COMPARED if name in block.sizes)
    aligned = f", and a loss of {margin} on aligned rows is ruled out" if "aligned" in block.sizes else ""
    about = f"Verdicts are about {size} samples{' (average)' if block.name == (AVERAGE,) else ''}."
    better = f"{MORE.capitalize()}: conflict accuracy is significantly higher{aligned}."
    return f"{about} {better} No difference: {'both intervals are' if aligned else 'its interval is'} within {margin}"


def subset_verdicts(comparison: Comparison) -> list[str]:
    """Return a line for each run after the first; empty without conflict rows."""
    block = comparison.headline
    first, *others = comparison.labels
    if block is None or "conflict" not in block.sizes:
        return []
    lines = []
    for label in others:
        changes = [f"{name} {points(change, star=False)}" for name, change in subset_changes(block, label).items()]
        lines.append(f"{label} against {first}: {', '.join(changes)}: {subset_verdict(subset_changes(block, label))}")
    return lines


def leader(comparison: Comparison) -> int | None:
    """Return the place of the run with the largest decided gain against the first; None without one."""
    block, gains = comparison.headline, dict[int, float]()
    by_subset = block is not None and comparison.is_about_subsets and "conflict" in block.sizes
    for place, label in enumerate(comparison.labels[1:], start=1):
        if by_subset and block is not None:
            changes = subset_changes(block, label)
            if subset_verdict(changes) == MORE:
                gains[place] = changes["conflict"].mean
        elif (change := main_change(comparison, label)).significant and change.mean > 0:
            gains[place] = change.mean
    return max(gains, key=lambda place: gains[place], default=None)


def subset_changes(block: Block, run: str) -> dict[str, Difference]:
    scores = {name: block.score(run, "accuracy", name) for name in COMPARED}
    return {name: score.change for name, score in scores.items() if score is not None and score.change is not None}


def subset_verdict(changes: dict[str, Difference]) -> str:
    """Return what the changes decide: on conflict rows by the corrected p, on aligned ones by the interval."""
    conflict, aligned = changes["conflict"], changes.get("aligned")
    if all(change.low >= -MARGIN and change.high <= MARGIN for change in changes.values()):
        return "no difference"
    aligned_lower = aligned is not None and aligned.significant and aligned.mean < 0
    if not conflict.significant:
        return "aligned lower, conflict not decided" if aligned_lower else "not decided"
    if conflict.mean < 0:
        return LESS
    if aligned is None or aligned.low >= -MARGIN:
        return MORE
    return "conflict higher, aligned lower" if aligned_lower else "conflict higher, aligned not decided"

"""A comparison as text: its tables, and at the end a verdict on each run against the first."""

from __future__ import annotations

from dataclasses import replace

from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded
from eval.compare.compare import Comparison
from eval.compare.figures import points, verdict_line
from eval.compare.subset_comparison import COMPARED, ENOUGH, MARGIN, MORE, SubsetComparison
from eval.compare.subset_tables import subset_comparison_tables
from eval.compare.tables import comparison_tables, faithfulness_tables
from eval.score.subsets import AVERAGE


def terminal_text(comparison: Comparison, *, groups: bool = True) -> str:
    """Tables and verdicts for the terminal; `groups=False` leaves out tables by group if there are some by subset."""
    subsets = [] if comparison.subsets is None else subset_comparison_tables(comparison.subsets)
    parts, tables = [], comparison_tables(comparison)
    if subsets and not groups:
        parts = [f"{comparison.bench}; tables by dataset, relation and format: --groups"]
        tables = faithfulness_tables(comparison)
    parts += [table.terminal() for table in tables + subsets]
    return "\n\n".join(filter(None, [*parts, folded("\n".join(closing_lines(comparison)))]))


def markdown_text(comparison: Comparison) -> str:
    """Tables with all columns, and verdicts, as Markdown."""
    subsets = [] if comparison.subsets is None else subset_comparison_tables(comparison.subsets, detail=True)
    tables: list[Table] = [*comparison_tables(comparison, detail=True), *subsets]
    return "\n\n".join([*(table.markdown() for table in tables), *closing_lines(comparison)])


def closing_lines(comparison: Comparison) -> list[str]:
    """Verdicts by subset after a line on their words, or else on the mean over all samples; empty for one run."""
    by_subset = [] if comparison.subsets is None else subset_verdicts(comparison.subsets)
    return by_subset or mean_verdicts(comparison)


def mean_verdicts(comparison: Comparison) -> list[str]:
    """For each run after the first: whether its mean over all samples differs, and how sure that is."""
    first, *others = comparison.labels
    row = comparison.rows[-1]
    return [
        verdict_line(f"{label} against {first}: mean", replace(gain.mean, adjusted_p=None), f"{row.n:,} samples")
        for label, gain in zip(others, row.gains, strict=True)
    ]


def subset_verdicts(comparison: SubsetComparison) -> list[str]:
    """What the verdicts' words mean, then a line for each run after the first; empty without conflict rows."""
    own = comparison.headline
    reference, *others = own.runs
    if not others or "conflict" not in own.sizes:
        return []
    margin = f"{100 * MARGIN:g} points"
    size = " and ".join(f"{own.sizes[name]:,} {name}" for name in COMPARED if name in own.sizes)
    aligned = f" and aligned not {margin} lower (interval)" if "aligned" in own.sizes else ""
    words = (
        f"Verdict with {size} samples{' (average)' if own.dataset == AVERAGE else ''}: {MORE} = conflict higher "
        f"(corrected p below 0.05){aligned}; no difference = {'both intervals' if aligned else 'its interval'} within "
        f"{margin}, of {ENOUGH} samples or more{' each' if aligned else ''}"
    )
    lines = []
    for run in others:
        changes = [f"{name} {points(run.changes[name], star=False)}" for name in COMPARED if name in run.changes]
        lines.append(f"{run.label} against {reference.label}: {', '.join(changes)}: {run.verdict}")
    return [words, *lines]

"""A comparison as text: its tables, and at the end a verdict on each run against the first."""

from __future__ import annotations

from dataclasses import replace

from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded, is_quiet
from eval.compare.compare import Comparison
from eval.compare.figures import points, verdict_line
from eval.compare.subset_comparison import COMPARED, MARGIN, MORE, SubsetComparison
from eval.compare.subset_tables import kind_tables, small_note, subset_comparison_tables
from eval.compare.tables import comparison_tables, faithfulness_tables
from eval.score.subsets import AVERAGE


def terminal_text(comparison: Comparison, *, groups: bool = True, detail: bool = False) -> str:
    """Tables and verdicts for the terminal; with `detail` the tables have all columns.

    `groups=False` leaves out the tables by group if the benchmark is about subsets.
    """
    hidden = comparison.is_about_subsets and not groups
    parts = [f"{comparison.bench}; tables by dataset, relation and format: --groups"] if hidden else []
    parts += [table.terminal() for table in _tables(comparison, groups=not hidden, detail=detail)]
    return "\n\n".join([*parts, folded("\n".join(closing_lines(comparison, words=not is_quiet())))]).rstrip("\n")


def markdown_text(comparison: Comparison) -> str:
    """Tables with all columns, and verdicts, as Markdown."""
    return "\n\n".join([*(table.markdown() for table in _tables(comparison, detail=True)), *closing_lines(comparison)])


def _tables(comparison: Comparison, *, groups: bool = True, detail: bool = False) -> list[Table]:
    """The overall tables and those by subset; the latter come first if the benchmark is about subsets."""
    subsets = [] if comparison.subsets is None else subset_comparison_tables(comparison.subsets, detail=detail)
    subsets += kind_tables(comparison.kinds)
    overall = (comparison_tables if groups else faithfulness_tables)(comparison, detail=detail)
    return [*subsets, *overall] if comparison.is_about_subsets else [*overall, *subsets]


def closing_lines(comparison: Comparison, *, words: bool = True) -> list[str]:
    """The verdicts, what their `words` mean, and the footnote on small subsets; for one run only the footnote."""
    meaning = verdict_words(comparison) if words else ""
    return [*filter(None, [meaning]), *verdicts(comparison), *filter(None, [small_note(comparison.small_subsets)])]


def verdicts(comparison: Comparison) -> list[str]:
    """A line for each run after the first: on its mean over all samples, and on subsets if they are compared.

    If the benchmark is about subsets, only on these.
    """
    by_subset = [] if comparison.subsets is None else subset_verdicts(comparison.subsets)
    return by_subset if by_subset and comparison.is_about_subsets else [*mean_verdicts(comparison), *by_subset]


def mean_verdicts(comparison: Comparison) -> list[str]:
    """For each run after the first: whether its mean over all samples differs, and how sure that is."""
    first, *others = comparison.labels
    row = comparison.overall
    return [
        verdict_line(f"{label} against {first}: mean", replace(gain.mean, adjusted_p=None), f"{row.n:,} samples")
        for label, gain in zip(others, row.gains, strict=True)
    ]


def verdict_words(comparison: Comparison) -> str:
    """What the words of verdicts on subsets mean; empty without such verdicts."""
    own = None if comparison.subsets is None else comparison.subsets.headline
    if own is None or len(own.runs) == 1 or "conflict" not in own.sizes:
        return ""
    margin = f"{100 * MARGIN:g} points"
    size = " and ".join(f"{own.sizes[name]:,} {name}" for name in COMPARED if name in own.sizes)
    aligned = f" and aligned not {margin} lower (interval)" if "aligned" in own.sizes else ""
    return (
        f"Verdict with {size} samples{' (average)' if own.dataset == AVERAGE else ''}: {MORE} = conflict higher "
        f"(corrected p below 0.05){aligned}; no difference = {'both intervals' if aligned else 'its interval'} within "
        f"{margin}"
    )


def subset_verdicts(comparison: SubsetComparison) -> list[str]:
    """A line for each run after the first; empty without conflict rows."""
    own = comparison.headline
    reference, *others = own.runs
    if "conflict" not in own.sizes:
        return []
    lines = []
    for run in others:
        changes = [f"{name} {points(run.changes[name], star=False)}" for name in COMPARED if name in run.changes]
        lines.append(f"{run.label} against {reference.label}: {', '.join(changes)}: {run.verdict}")
    return lines

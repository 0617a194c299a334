"""What a comparison, a report and the quickstart end with: one line for each run against the first."""

from __future__ import annotations

from eval.compare import narrow_tables, subset_tables
from eval.compare.compare import Comparison


def closing_lines(comparison: Comparison) -> str:
    """Verdicts on reading where rows are of habit against context, else on the mean of all samples; empty of one run.

    Those on reading stand behind a paragraph that says what their words mean.
    """
    by_subset = [] if comparison.subsets is None else subset_tables.verdicts(comparison.subsets)
    return "\n\n".join(by_subset) or "\n".join(narrow_tables.verdicts(comparison))

"""A comparison by measures as a table, as a table for LaTeX, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable

from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import Styled, Table, percent
from d2e_sft.util.terminal import folded
from eval.compare.figures import corrected_p, points, with_interval
from eval.compare.measures.comparison import MeasureComparison, MeasureRow


def measure_table(comparison: MeasureComparison) -> Table:
    """A block for each measure, a row for each result: score, difference to the first, and p."""
    several = len(comparison.labels) > 1
    lines, blocks = [], []
    for row in comparison.rows:
        for label, score, change in zip(comparison.labels, row.scores, [None, *row.changes], strict=True):
            tested = ["", ""] if change is None else [points(change), corrected_p(change)]
            lines.append([label, with_interval(score), *(tested if several else [])])
            blocks.append(f"{row.name} ({row.n:,})")
    left_out = ", ".join(comparison.left_out)
    notes = [f"Left out, because not all results have them: {left_out}."] if left_out else []
    columns = ["run", "score", *(["Δ", "p"] if several else [])]
    return Table.of(columns, lines, about(comparison), blocks=("measure", blocks), notes=notes)


def measures_text(comparison: MeasureComparison, write: Callable[[Table], str]) -> str:
    """The table and the verdicts.

    Args:
        write: `Table.terminal` or `Table.markdown`.
    """
    return "\n\n".join(
        filter(None, [write(measure_table(comparison)), folded("\n".join(measure_verdicts(comparison)))])
    )


def about(comparison: MeasureComparison) -> str:
    """What the figures are."""
    first, *others = comparison.labels
    units = " and ".join(dict.fromkeys(row.unit for row in comparison.rows))
    text = f"{comparison.bench}: percent with 95 % bootstrap intervals over {units}"
    if others:
        text += (
            f"; Δ to {first} in percentage points, paired; p of approximate randomisation, corrected (Holm): the "
            "first measure's for the results, the other measures' for results and measures; * below 0.05"
        )
    return text


def measures_latex(comparison: MeasureComparison) -> str:
    """A row for each result: scores with half the width of their intervals, the best bold, † significant.

    The dagger marks a corrected p below 0.05 of the difference to the first row.
    """
    rows = [
        [label, *(_latex_cell(row, place) for row in comparison.rows)] for place, label in enumerate(comparison.labels)
    ]
    caption = f"{comparison.bench}: percent, with half the width of the 95 % bootstrap interval."
    if len(comparison.labels) > 1:
        caption += f" † differs from {comparison.labels[0]} (approximate randomisation, Holm, p < 0.05)."
    columns = ["", *(f"{row.name} (n={row.n:,})" for row in comparison.rows)]
    return latex_table(Table.of(columns, rows, caption), comparison.bench.replace(" ", "-"))


def _latex_cell(row: MeasureRow, place: int) -> Styled:
    scores = [percent(score.mean) for score in row.scores]
    best = max(scores, key=float)
    mark = "†" if place and row.changes[place - 1].significant else ""
    score = row.scores[place]
    text = f"{scores[place]}{mark} ±{percent((score.high - score.low) / 2)}"
    return Styled.of(text, best=scores[place] == best and len(set(scores)) > 1)


def measure_verdicts(comparison: MeasureComparison) -> list[str]:
    """For each result after the first, whether the first measure differs."""
    first, *others = comparison.labels
    row = comparison.rows[0]
    lines = []
    for label, change in zip(others, row.changes, strict=True):
        found = ("higher" if change.mean > 0 else "lower") if change.significant else "not decided"
        told = f"{row.name} {points(change, star=False)}, p {corrected_p(change)}"
        lines.append(f"{label} against {first}: {told}: {found} with {row.n:,} {row.unit}")
    return lines

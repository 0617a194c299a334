"""A comparison by measures as a table, as a table for LaTeX, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable

from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import Styled, Table, percent
from d2e_sft.util.terminal import folded
from eval.compare.figures import corrected_p, points, verdict_line, with_interval
from eval.compare.measures.measure import MeasureComparison


def measure_table(comparison: MeasureComparison) -> Table:
    """A block for each measure, a row for each result: score, difference to the first, and p."""
    several = len(comparison.labels) > 1
    lines = []
    for row in comparison.rows:
        for label, score, change in zip(comparison.labels, row.scores, [None, *row.changes], strict=True):
            tested = ["", ""] if change is None else [points(change), corrected_p(change)]
            lines.append((f"{row.name} ({row.n:,})", [label, with_interval(score), *(tested if several else [])]))
    left_out = ", ".join(comparison.left_out)
    notes = [f"Left out, because not all results have them: {left_out}."] if left_out else []
    columns = ["run", "score", *(["Δ", "p"] if several else [])]
    return Table.in_blocks("measure", columns, lines, about(comparison), notes=notes)


def measures_text(comparison: MeasureComparison, write: Callable[[Table], str]) -> str:
    """The table, written by `Table.terminal` or `Table.markdown`, and the verdicts."""
    verdicts = folded("\n".join(measure_verdicts(comparison)))
    return "\n\n".join(filter(None, [write(measure_table(comparison)), verdicts]))


def about(comparison: MeasureComparison) -> str:
    """What the figures are."""
    first, *others = comparison.labels
    units = " and ".join(dict.fromkeys(row.unit for row in comparison.rows))
    text = f"{comparison.bench}: percent with 95 % intervals over {units}"
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
    rows = [[label] for label in comparison.labels]
    for row in comparison.rows:
        scores = [percent(score.mean) for score in row.scores]
        best = max(scores, key=float)
        for cells, text, score, change in zip(rows, scores, row.scores, [None, *row.changes], strict=True):
            mark = "†" if change is not None and change.significant else ""
            shown = f"{text}{mark} ±{percent((score.high - score.low) / 2)}"
            cells.append(Styled.of(shown, best=text == best and len(set(scores)) > 1))
    caption = f"{comparison.bench}: percent, with half the width of the 95 % interval."
    if len(comparison.labels) > 1:
        caption += f" † differs from {comparison.labels[0]} (approximate randomisation, Holm, p < 0.05)."
    columns = ["", *(f"{row.name} (n={row.n:,})" for row in comparison.rows)]
    return latex_table(Table.of(columns, rows, caption), comparison.bench.replace(" ", "-"))


def measure_verdicts(comparison: MeasureComparison) -> list[str]:
    """For each result after the first, whether the first measure differs."""
    first, *others = comparison.labels
    row = comparison.rows[0]
    return [
        verdict_line(f"{label} against {first}: {row.name}", change, f"{row.n:,} {row.unit}")
        for label, change in zip(others, row.changes, strict=True)
    ]

"""A comparison by measures as text: blocks for a terminal of 100 columns, Markdown, LaTeX, and its verdicts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from d2e_sft.util.tables import WIDTH, markdown_cell, markdown_table, percent, text_table
from eval.compare.measures.comparison import MeasureComparison, MeasureRow
from eval.compare.paper_render import latex_text
from eval.compare.tables import points, short_p, with_interval
from eval.score.statistics import Difference

_LABEL = 30  # characters of a result's name at most


def narrow_text(comparison: MeasureComparison) -> str:
    """A block a measure, a line a result, and the verdicts."""
    parts = [_wrapped(about(comparison)), _blocks(comparison)]
    if comparison.left_out:
        parts.append(_wrapped(f"Not of all of them, and left out: {', '.join(comparison.left_out)}"))
    return "\n\n".join([*parts, *filter(None, ["\n".join(verdicts(comparison))])])


def about(comparison: MeasureComparison) -> str:
    """What the figures are."""
    first, *others = comparison.labels
    units = " and ".join(dict.fromkeys(row.unit for row in comparison.rows))
    text = f"{comparison.bench}: percent with 95 % bootstrap intervals over {units}"
    if others:
        text += (
            f"; Δ to {first} in percentage points, paired; p of approximate randomisation, corrected (Holm) of the "
            "first measure for the results, of the others for results and measures; * below 0.05"
        )
    return text


def _blocks(comparison: MeasureComparison) -> str:
    several = len(comparison.labels) > 1
    header = ["", "score", *(["Δ", "p"] if several else [])]
    table: list[list[str]] = [header]
    headings: dict[int, str] = {}
    for row in comparison.rows:
        headings[len(table)] = f"{row.name} ({row.n:,})"
        table += [[f"  {_short(line[0])}", *line[1:]] for line in _lines(comparison, row)]
    lines = text_table(table).splitlines()
    return "\n".join(
        text for n, line in enumerate(lines) for text in ([headings[n], line] if n in headings else [line])
    )


def _lines(comparison: MeasureComparison, row: MeasureRow) -> Iterator[list[str]]:
    """Of one measure: label, score and, where there are several results, difference and p of each."""
    for label, score, change in zip(comparison.labels, row.scores, [None, *row.changes], strict=True):
        tested = ["", ""] if change is None else [points(change), corrected_p(change)]
        yield [label, with_interval(score), *(tested if row.changes else [])]


def corrected_p(change: Difference) -> str:
    """Its p-value, corrected where it is."""
    return short_p(change.p_value if change.adjusted_p is None else change.adjusted_p)


def markdown_text(comparison: MeasureComparison) -> str:
    """A row a result, a column a measure, and the differences to the first in a table of their own."""
    names = [f"{row.name} (n = {row.n:,})" for row in comparison.rows]
    scores = [
        [label, *(with_interval(row.scores[place]) for row in comparison.rows)]
        for place, label in enumerate(comparison.labels)
    ]
    parts = [about(comparison), _markdown(["", *names], scores)]
    first, *others = comparison.labels
    if others:
        changes = [
            [label, *(_change(row.changes[place]) for row in comparison.rows)] for place, label in enumerate(others)
        ]
        parts.append(_markdown([f"Δ to {first}", *names], changes))
    return "\n\n".join([*parts, *verdicts(comparison)])


def _change(change: Difference) -> str:
    return f"{points(change)}, p {corrected_p(change)}"


def _markdown(columns: list[str], lines: list[list[str]]) -> str:
    escaped = [[markdown_cell(cell) for cell in line] for line in lines]
    return markdown_table([*map(markdown_cell, columns)], escaped, left=columns[:1], tight=True)


def latex_table(comparison: MeasureComparison) -> str:
    r"""A `table*` of a row a result: scores with half their intervals' widths, the best bold, † significant.

    Its preamble needs booktabs. The dagger marks a corrected p below 0.05 of the difference to the first row.
    """
    names = " & ".join(latex_text(row.name) for row in comparison.rows)
    counts = " & ".join(rf"\scriptsize $n={row.n:,}$".replace(",", "{,}") for row in comparison.rows)
    best = [max(round(100 * score.mean, 1) for score in row.scores) for row in comparison.rows]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table*}[t]",
        r"\centering",
        r"\small",
        rf"\begin{{tabular}}{{l {'c' * len(comparison.rows)}}}",
        r"\toprule",
        rf" & {names} \\",
        rf" & {counts} \\",
        r"\midrule",
    ]
    for place, label in enumerate(comparison.labels):
        cells = [_latex_cell(row, place, top) for row, top in zip(comparison.rows, best, strict=True)]
        lines.append(f"{latex_text(label)} & {' & '.join(cells)} \\\\")
    caption = f"{comparison.bench}: percent, with half the width of the 95 % bootstrap interval."
    if len(comparison.labels) > 1:
        caption += f" † differs from {comparison.labels[0]} (approximate randomisation, Holm, p < 0.05)."
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{latex_text(caption)}}}",
        rf"\label{{tab:{comparison.bench.replace(' ', '-')}}}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(row: MeasureRow, place: int, best: float) -> str:
    score = row.scores[place]
    text = percent(score.mean)
    others_differ = any(round(100 * other.mean, 1) != best for other in row.scores)
    if round(100 * score.mean, 1) == best and others_differ:
        text = rf"\textbf{{{text}}}"
    mark = latex_text("†") if place and row.changes[place - 1].significant else ""
    return rf"{text}{mark} {{\scriptsize $\pm${percent((score.high - score.low) / 2)}}}"


def verdicts(comparison: MeasureComparison) -> list[str]:
    """One line for each result but the first, about the headline."""
    first, *others = comparison.labels
    row = comparison.rows[0]
    return [_verdict(row, label, first, change) for label, change in zip(others, row.changes, strict=True)]


def _verdict(row: MeasureRow, label: str, first: str, change: Difference) -> str:
    found = ("higher" if change.mean > 0 else "lower") if change.significant else "not decided"
    told = points(change).removesuffix(" *")
    text = f"{label} against {first}: {row.name} {told}, p {corrected_p(change)}: {found} with {row.n:,} {row.unit}"
    return _wrapped(text)


def _short(label: str) -> str:
    return label if len(label) <= _LABEL else f"…{label[1 - _LABEL :]}"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))

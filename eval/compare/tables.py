"""Scores as Markdown tables that paste into a README: never wrapped, never cut, whatever the terminal.

For nli they show how often each label was predicted, so that a collapse to one label is seen at a glance. A model that
has learnt to ignore the premise gives one label to nearly every sample and is right on about half of them (PIPER,
section 4.4); its accuracy alone does not show that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from d2e_sft.util.tables import markdown_cell, markdown_table, percent, percent_interval
from eval.compare.compare import Cell, Comparison, Gain, Row
from eval.compare.context_use import ContextUse
from eval.compare.error_patterns import ErrorPattern, JudgedError, count_patterns
from eval.compare.faithfulness import ABOUT_JUDGED, ABOUT_WORDS, JUDGED, measures_of
from eval.score.predictions import Prediction
from eval.score.scores import GroupScores
from eval.score.statistics import Difference, Interval

_GROUP = ("dataset", "relation", "format", "n")
_SHARES = "percent positive / negative / no label"
_COLLAPSED = 0.95
_ENOUGH = 10  # of a handful of samples, one label may take all by chance
_BAR = 20
_MARKS = {"positive": "█", "negative": "░", "other": "·"}
LABELS = tuple(_MARKS)


def with_interval(score: Interval | None) -> str:
    """A fraction with its interval in percent: `61.3 [58.2, 64.4]`."""
    return percent(None) if score is None else percent_interval(score.mean, score.low, score.high)


def points(difference: Difference | None) -> str:
    """A difference of fractions in percentage points, starred where it is significant."""
    if difference is None:
        return percent(None)
    low, high = 100 * difference.low, 100 * difference.high
    star = " *" if difference.significant else ""
    return f"{100 * difference.mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]{star}"


def p_value(difference: Difference) -> str:
    """A p-value and, behind it in brackets, the one that is corrected for the other rows."""
    corrected = "" if difference.adjusted_p is None else f" ({short_p(difference.adjusted_p)})"
    return short_p(difference.p_value) + corrected


def error_pattern_table(wrong: Sequence[Prediction], errors: Sequence[JudgedError], total: int) -> str:
    """Wrong predictions by relation and error pattern: counts, and percent of the relation's wrong ones."""
    lines = []
    for relation, counts in count_patterns(wrong, errors).items():
        every = sum(counts.values())
        lines.append([relation, str(every), *(f"{n} ({percent(n / every)} %)" for n in counts.values())])
    columns = ["relation", "wrong", *(pattern.value for pattern in ErrorPattern)]
    table = markdown_table(columns, lines, left=("relation",), tight=True)
    return f"{len(wrong)} of {total} predictions are wrong\n\n{table}"


def comparison_tables(comparison: Comparison) -> str:
    """The scores, then nli label shares and paired differences to the first run where there are any."""
    labels = comparison.labels
    parts = [
        f"{comparison.bench}: percent with 95 % bootstrap intervals; mean is that of EM and F1, and an average that "
        "of its relation's rows",
        _score_table(comparison),
    ]
    if any(row.gold_shares for row in comparison.rows):
        parts.append(f"Predicted labels of nli: {_SHARES}")
        parts.append(_share_table(comparison))
        parts.extend(collapses(comparison))
    if comparison.asked_without:
        parts.append(
            "What the context is worth: the mean of answers without it, what it adds to them in percentage points "
            "(paired; * where the p corrected for the rows is below 0.05), and how many percent stay the same. "
            "Answers without it are decoded plainly, so runs of another α are not alike in this"
        )
        parts.append(_context_table(comparison))
    if comparison.faithfulness:
        judged = f". {ABOUT_JUDGED}" if any(row.has(JUDGED) for row in comparison.faithfulness) else ""
        parts += [ABOUT_WORDS + judged, _faithfulness_table(comparison)]
    if len(labels) > 1:
        parts.append(
            f"Paired difference to {labels[0]}: percentage points with 95 % intervals; p of a paired sign-flip test "
            "on the mean, in brackets corrected for the number of rows (Holm); * where a metric's corrected p is "
            "below 0.05"
        )
        parts.append(_gain_table(comparison))
    return "\n\n".join(parts)


def collapses(comparison: Comparison) -> list[str]:
    """A warning for each run and nli group in which one label has taken over."""
    warnings = [
        collapse_warning(f"{label}, {row.dataset} ({row.relation})", cell.label_shares, row.gold_shares, row.n)
        for row in comparison.rows
        for label, cell in zip(comparison.labels, row.cells, strict=True)
        if cell.label_shares and row.gold_shares
    ]
    return list(filter(None, warnings))


def _score_table(comparison: Comparison) -> str:
    sets = ["set accuracy"] if comparison.has_sets else []
    columns = [
        f"{label} {metric}" for label in comparison.labels for metric in ("mean", "EM", "F1", *sets, "unparsed")
    ]

    def cells(cell: Cell) -> list[str]:
        scores = [cell.mean, cell.exact_match, cell.f1, *([cell.set_accuracy] if sets else [])]
        return [*map(with_interval, scores), percent(cell.extraction.get("none", 0.0))]

    return _table(columns, [(row, [text for cell in row.cells for text in cells(cell)]) for row in comparison.rows])


def _gain_table(comparison: Comparison) -> str:
    sets = ["Δset accuracy"] if comparison.has_sets else []
    columns = [f"{label} {name}" for label in comparison.labels[1:] for name in ("Δmean", "p", "ΔEM", "ΔF1", *sets)]

    def cells(gain: Gain) -> list[str]:
        rest = [gain.exact_match, gain.f1, *([gain.set_accuracy] if sets else [])]
        return [points(gain.mean), p_value(gain.mean), *map(points, rest)]

    return _table(columns, [(row, [text for gain in row.gains for text in cells(gain)]) for row in comparison.rows])


def _context_table(comparison: Comparison) -> str:
    columns = [f"{label} {name}" for label in comparison.asked_without for name in ("without", "context adds", "same")]

    def cells(use: ContextUse) -> list[str]:
        return [with_interval(use.without), points(use.gain), percent(use.same)]

    return _table(
        columns, [(row, [text for use in row.context_use if use for text in cells(use)]) for row in comparison.rows]
    )


def _faithfulness_table(comparison: Comparison) -> str:
    measures = measures_of(comparison.faithfulness)
    others = len(comparison.labels) > 1
    columns = ["dataset", "n", "run", *(title for name in measures for title in (name, f"Δ {name}")[: 1 + others])]
    lines = []
    for row in comparison.faithfulness:
        for run in row.runs:
            cells = ((with_interval(run.scores.get(m)), points(run.changes.get(m)))[: 1 + others] for m in measures)
            lines.append([row.dataset, f"{row.n:,}", run.label, *(text for pair in cells for text in pair)])
    escaped = [[markdown_cell(cell) for cell in line] for line in lines]
    return markdown_table(columns, escaped, left=("dataset", "run"), tight=True)


def _share_table(comparison: Comparison) -> str:
    lines = []
    for row in comparison.rows:
        if row.gold_shares:
            shares = (cell.label_shares for cell in row.cells)
            cells = (percent(None) if share is None else shares_in_percent(share) for share in shares)
            lines.append((row, [shares_in_percent(row.gold_shares), *cells]))
    return _table(["gold", *comparison.labels], lines)


def short_p(value: float) -> str:
    """A p-value to three digits behind the point."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _table(columns: Sequence[str], lines: Sequence[tuple[Row | GroupScores, Sequence[str]]]) -> str:
    """One line for each group, with what names it before the values."""
    cells = [[row.dataset, row.relation, row.format, f"{row.n:,}", *values] for row, values in lines]
    escaped = [[markdown_cell(cell) for cell in line] for line in cells]
    return markdown_table([*_GROUP, *map(markdown_cell, columns)], escaped, left=_GROUP[:3], tight=True)


def shares_in_percent(shares: Mapping[str, float]) -> str:
    """`99.2 / 0.8 / 0.0`: positive, negative, and outputs without a label; the gold shares have no third."""
    return " / ".join(percent(shares[label]) for label in LABELS if label in shares)


def share_bar(shares: Mapping[str, float]) -> str:
    """The shares as a bar of 20 characters: █ positive, ░ negative, · no label."""
    ends, total = [], 0.0
    for label in LABELS:
        total += shares.get(label, 0.0)
        ends.append(round(_BAR * total))
    widths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return "".join(mark * width for mark, width in zip(_MARKS.values(), widths, strict=True))


def collapsed_label(predicted: Mapping[str, float], gold: Mapping[str, float], n: int) -> str | None:
    """The label that takes at least 95 % of n predictions although it is not the gold one as often; else None."""
    label = max(("positive", "negative"), key=lambda name: predicted.get(name, 0.0))
    collapsed = n >= _ENOUGH and predicted.get(label, 0.0) >= _COLLAPSED > gold.get(label, 0.0)
    return label if collapsed else None


def collapse_warning(name: str, predicted: Mapping[str, float], gold: Mapping[str, float], n: int) -> str | None:
    """A line that says which label took over in the group of that name, or None."""
    label = collapsed_label(predicted, gold, n)
    if label is None:
        return None
    return (
        f"WARNING {name}: collapsed to one label: {percent(predicted[label])} % of {n:,} answers are {label!r}, "
        f"which is right for {percent(gold.get(label, 0.0))} %"
    )

"""Scores as Markdown tables that paste into a README: never wrapped, never cut, whatever the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.compare.compare import Comparison, Gain, Row
from eval.compare.error_patterns import ErrorPattern
from eval.compare.label_shares import collapse_warning, share_bar, shares_in_percent
from eval.score.predictions import Prediction
from eval.score.scores import GroupScores, Scores
from eval.score.statistics import Difference, Interval

# Wider than any table, since a narrower console would wrap the cells.
_WIDTH = 100_000
_GROUP = ("dataset", "relation", "format", "n")
_SHARES = "percent positive / negative / no label"


def percent(interval: Interval | None) -> str:
    """A fraction with its interval in percent: `61.3 [58.2, 64.4]`."""
    if interval is None:
        return "–"
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def points(difference: Difference | None) -> str:
    """A difference of fractions in percentage points, starred where it is significant."""
    if difference is None:
        return "–"
    low, high = 100 * difference.low, 100 * difference.high
    star = " *" if difference.significant else ""
    return f"{100 * difference.mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]{star}"


def p_value(difference: Difference) -> str:
    """A p-value and, behind it in brackets, the one that is corrected for the other rows."""
    corrected = "" if difference.adjusted_p is None else f" ({_p(difference.adjusted_p)})"
    return _p(difference.p_value) + corrected


def score_table(scores: Scores) -> str:
    """One run's scores as Markdown.

    For nli a second table shows the predicted labels, with a warning where one label has taken over.
    """
    groups = scores.groups
    rows = groups if len(groups) == 1 else [*groups, scores.overall]
    sets = any(group.set_accuracy is not None for group in groups)
    table = _table(["mean", "EM", "F1", *(["set accuracy"] if sets else []), "lenient", "unparsed"])
    for group in rows:
        values = [group.mean, group.exact_match, group.f1, *([group.set_accuracy] if sets else [])]
        shares = (f"{100 * group.extraction.get(mode, 0.0):.1f}" for mode in ("lenient", "none"))
        _add(table, group, [*map(percent, values), *shares])
    return "\n\n".join([_rendered(table), *_predicted_labels(groups)])


def error_pattern_table(wrong: Sequence[Prediction], patterns: Sequence[ErrorPattern], total: int) -> str:
    """Wrong predictions by relation and error pattern: counts, and percent of the relation's wrong ones."""
    table = Table(box=box.MARKDOWN, header_style="")
    for name in ("relation", "wrong", *(pattern.value for pattern in ErrorPattern)):
        table.add_column(name, justify="left" if name == "relation" else "right", no_wrap=True)
    relations = list(dict.fromkeys(prediction.relation for prediction in wrong))
    for relation in [*relations, "all"] if len(relations) > 1 else relations:
        found = [p for w, p in zip(wrong, patterns, strict=True) if relation in ("all", w.relation)]
        shares = (
            f"{found.count(pattern)} ({100 * found.count(pattern) / len(found):.1f} %)" for pattern in ErrorPattern
        )
        table.add_row(relation, str(len(found)), *shares)
    return f"{len(wrong)} of {total} predictions are wrong\n\n{_rendered(table)}"


def comparison_tables(comparison: Comparison) -> str:
    """The scores, then nli label shares and paired differences to the first run where there are any."""
    labels = comparison.labels
    parts = [
        f"{comparison.bench}: percent with 95 % bootstrap intervals; mean is that of EM and F1, and an average that "
        "of its relation's rows",
        _rendered(_score_table(comparison)),
    ]
    if any(row.gold_shares for row in comparison.rows):
        parts.append(f"Predicted labels of nli: {_SHARES}")
        parts.append(_rendered(_share_table(comparison)))
        parts.extend(collapses(comparison))
    if comparison.asked_without:
        parts.append(
            "What the context is worth: the mean of answers without it, what it adds to them in percentage points "
            "(paired; * where the p corrected for the rows is below 0.05), and how many percent stay the same. "
            "Answers without it are decoded plainly, so runs of another α are not alike in this"
        )
        parts.append(_rendered(_context_table(comparison)))
    if len(labels) > 1:
        parts.append(
            f"Paired difference to {labels[0]}: percentage points with 95 % intervals; p of a paired sign-flip test "
            "on the mean, in brackets corrected for the number of rows (Holm); * where a metric's corrected p is "
            "below 0.05"
        )
        parts.append(_rendered(_gain_table(comparison)))
    return "\n\n".join(parts)


def _predicted_labels(groups: Sequence[GroupScores]) -> list[str]:
    table = _table(["predicted", "gold", "█ positive ░ negative"])
    warnings = []
    for group in groups:
        if group.label_shares and group.gold_shares:
            shares = shares_in_percent(group.label_shares), shares_in_percent(group.gold_shares)
            _add(table, group, [*shares, share_bar(group.label_shares)])
            name = f"{group.dataset} ({group.relation})"
            warnings.append(collapse_warning(name, group.label_shares, group.gold_shares, group.n))
    if not table.row_count:
        return []
    return [f"Predicted labels of nli: {_SHARES}", _rendered(table), *filter(None, warnings)]


def collapses(comparison: Comparison) -> list[str]:
    """A warning for each run and nli group in which one label has taken over."""
    warnings = [
        collapse_warning(f"{label}, {row.dataset} ({row.relation})", cell.label_shares, row.gold_shares, row.n)
        for row in comparison.rows
        for label, cell in zip(comparison.labels, row.cells, strict=True)
        if cell.label_shares and row.gold_shares
    ]
    return list(filter(None, warnings))


def _score_table(comparison: Comparison) -> Table:
    sets = ["set accuracy"] if comparison.has_sets else []
    table = _table(
        f"{label} {metric}" for label in comparison.labels for metric in ("mean", "EM", "F1", *sets, "unparsed")
    )
    for row in comparison.rows:
        values = []
        for cell in row.cells:
            scores = [cell.mean, cell.exact_match, cell.f1, *([cell.set_accuracy] if sets else [])]
            values += [*map(percent, scores), f"{100 * cell.extraction.get('none', 0.0):.1f}"]
        _add(table, row, values)
    return table


def _gain_table(comparison: Comparison) -> Table:
    sets = ["Δset accuracy"] if comparison.has_sets else []
    table = _table(
        f"{label} {name}" for label in comparison.labels[1:] for name in ("Δmean", "p", "ΔEM", "ΔF1", *sets)
    )
    for row in comparison.rows:
        _add(table, row, [value for gain in row.gains for value in _gain_cells(gain, bool(sets))])
    return table


def _gain_cells(gain: Gain, sets: bool) -> list[str]:
    rest = [gain.exact_match, gain.f1, *([gain.set_accuracy] if sets else [])]
    return [points(gain.mean), p_value(gain.mean), *map(points, rest)]


def _context_table(comparison: Comparison) -> Table:
    table = _table(
        f"{label} {name}" for label in comparison.asked_without for name in ("without", "context adds", "same")
    )
    for row in comparison.rows:
        uses = [use for use in row.context_use if use is not None]
        cells = ((percent(use.without), points(use.gain), f"{100 * use.same:.1f}") for use in uses)
        _add(table, row, [cell for of_run in cells for cell in of_run])
    return table


def _share_table(comparison: Comparison) -> Table:
    table = _table(["gold", *comparison.labels])
    for row in comparison.rows:
        if row.gold_shares:
            cells = ("–" if cell.label_shares is None else shares_in_percent(cell.label_shares) for cell in row.cells)
            _add(table, row, [shares_in_percent(row.gold_shares), *cells])
    return table


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=box.MARKDOWN, header_style="")
    for name in _GROUP:
        table.add_column(name, justify="right" if name == "n" else "left", no_wrap=True)
    for name in columns:
        table.add_column(_plain(name), justify="right", no_wrap=True)
    return table


def _add(table: Table, row: Row | GroupScores, values: Sequence[str]) -> None:
    group = [row.dataset, row.relation, row.format, f"{row.n:,}"]
    table.add_row(*(_plain(text) for text in [*group, *values]))


def _plain(text: str) -> Text:
    # Text and not str: a name or an interval in brackets would be read as rich markup.
    return Text(text.replace("|", "\\|"))


def _rendered(table: Table) -> str:
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().strip()

"""Scores as Markdown tables that paste into a README: never wrapped, never cut, whatever the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.compare import Comparison, Row
from eval.error_patterns import ErrorPattern
from eval.intervals import Difference, Interval
from eval.predictions import Prediction
from eval.runs import GroupScores

# Wider than any table, since a narrower console would wrap the cells.
_WIDTH = 100_000
_GROUP = ("dataset", "relation", "format", "n")


def percent(interval: Interval) -> str:
    """A fraction with its interval in percent: `61.3 [58.2, 64.4]`."""
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def points(difference: Difference) -> str:
    """A difference of fractions in percentage points, starred where the interval excludes 0."""
    low, high = 100 * difference.low, 100 * difference.high
    star = " *" if difference.significant else ""
    return f"{100 * difference.mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]{star}"


def score_table(scores: Mapping[str, Any]) -> str:
    """One run's scores, as `eval.scores.score_predictions` returns them, as a Markdown table."""
    table = _table(["EM", "F1", "recognised"])
    groups = scores["groups"]
    for entry in groups if len(groups) == 1 else [*groups, scores["overall"]]:
        group = GroupScores.model_validate(entry)
        _add(table, group, [percent(group.exact_match), percent(group.f1), f"{100 * group.parsed:.1f}"])
    return _rendered(table)


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
    parts = [f"{comparison.bench}: percent with 95 % bootstrap intervals", _rendered(_score_table(comparison))]
    if any(row.gold_shares for row in comparison.rows):
        parts.append("Predicted labels of nli: percent positive / negative / other")
        parts.append(_rendered(_share_table(comparison)))
    if len(labels) > 1:
        parts.append(f"Paired difference to {labels[0]}: percentage points, * where the 95 % interval excludes 0")
        parts.append(_rendered(_gain_table(comparison)))
    return "\n\n".join(parts)


def _score_table(comparison: Comparison) -> Table:
    table = _table(f"{label} {metric}" for label in comparison.labels for metric in ("EM", "F1"))
    for row in comparison.rows:
        _add(table, row, [percent(score) for cell in row.cells for score in (cell.exact_match, cell.f1)])
    return table


def _gain_table(comparison: Comparison) -> Table:
    table = _table(f"{label} {metric}" for label in comparison.labels[1:] for metric in ("ΔEM", "ΔF1"))
    for row in comparison.rows:
        _add(table, row, [points(gain) for pair in row.gains for gain in (pair.exact_match, pair.f1)])
    return table


def _share_table(comparison: Comparison) -> Table:
    table = _table(["gold", *comparison.labels])
    for row in comparison.rows:
        if row.gold_shares:
            _add(table, row, [_shares(shares) for shares in (row.gold_shares, *(c.label_shares for c in row.cells))])
    return table


def _shares(shares: dict[str, float] | None) -> str:
    if shares is None:
        return "–"
    return " / ".join(f"{100 * shares.get(label, 0.0):.1f}" for label in ("positive", "negative", "other"))


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

"""Figures as the cells of tables."""

from __future__ import annotations

from eval.systems.system import ScoreTable

NOT_COMPUTED = "not computed"


def cell(value: float | None) -> str:
    """Three decimals, or that there is no value."""
    return NOT_COMPUTED if value is None else f"{value:.3f}"


def bertscore_table(title: str, rows: list[tuple[str, float | None, float | None]]) -> ScoreTable:
    """BERTScore without and with expansion; says what to do where none was computed."""
    missing = all(plain is None and expanded is None for _, plain, expanded in rows)
    title = f"{title}: not computed, set bertscore_model=NAME" if missing else title
    lines = [(what, cell(plain), cell(expanded)) for what, plain, expanded in rows]
    return ScoreTable(title, ("of", "BERTScore", "+ expansion"), lines)


def scored(count: int, total: int, what: str = "procedures") -> str:
    """How many are scored, for a title."""
    return f"{count} {what}" if count == total else f"{count} of {total} {what}"

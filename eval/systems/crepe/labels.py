"""The three labels of CREPE, as its official scorer numbers them, and the texts they stand in."""

from __future__ import annotations

EQUALLY, LESS, MORE = 0, 1, 2
LABELS = ("equally likely", "less likely", "more likely")


def official_label(change: str) -> int:
    """A change as the official scorer reads it: whatever is not exactly `less likely` counts as more.

    That holds for the empty string and for `equally likely`, too.
    """
    return LESS if change == LABELS[LESS] else MORE


def corrected_label(change: str) -> int:
    """A change by its meaning: letter case and blanks aside, what is neither more nor less is no change."""
    words = change.strip().casefold().split()
    if words[:1] == ["less"]:
        return LESS
    return MORE if words[:1] == ["more"] else EQUALLY

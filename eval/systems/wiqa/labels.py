"""WIQA's labels: their texts, the names that the official code knows them by, and their polarities."""

from __future__ import annotations

from typing import Literal

Label = Literal["more", "less", "no_effect"]
LABELS: tuple[Label, ...] = ("more", "less", "no_effect")
# +1: the cause brings the effect about (the paper's "correct"), -1: its opposite, 0: nothing.
POLARITY: dict[Label, int] = {"more": 1, "less": -1, "no_effect": 0}
OF_POLARITY: dict[int, Label] = {polarity: label for label, polarity in POLARITY.items()}

# What the official code takes for a label, underscores and letter case aside; A, B and C are the choices' letters.
_NAMES: dict[str, Label] = {
    **dict.fromkeys(("more", "+", "positive", "results in", "correct", "correct effect", "a"), "more"),
    **dict.fromkeys(
        ("less", "-", "not results in", "opposite", "opp", "results in opp", "opp effect", "opposite effect", "b"),
        "less",
    ),
    **dict.fromkeys(("no effect", "none", ".", "c"), "no_effect"),
}


def label_of(text: str) -> Label | None:
    """The label that a text names; None where it names none."""
    return _NAMES.get(text.casefold().replace("_", " ").strip())

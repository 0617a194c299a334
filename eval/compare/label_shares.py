"""How often each label of nli was predicted, so that a collapse to one label is seen at a glance.

A model that has learnt to ignore the premise gives one label to nearly every sample and is right on about half of
them (PIPER, section 4.4); its accuracy alone does not show that.
"""

from __future__ import annotations

from collections.abc import Mapping

COLLAPSED = 0.95
_ENOUGH = 10  # of a handful of samples, one label may take all by chance
_BAR = 20
_MARKS = {"positive": "█", "negative": "░", "other": "·"}
LABELS = tuple(_MARKS)


def shares_in_percent(shares: Mapping[str, float]) -> str:
    """`99.2 / 0.8 / 0.0`: positive, negative, and outputs without a label; the gold shares have no third."""
    return " / ".join(f"{100 * shares[label]:.1f}" for label in LABELS if label in shares)


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
    collapsed = n >= _ENOUGH and predicted.get(label, 0.0) >= COLLAPSED > gold.get(label, 0.0)
    return label if collapsed else None


def collapse_warning(name: str, predicted: Mapping[str, float], gold: Mapping[str, float], n: int) -> str | None:
    """A line that says which label took over in the group of that name, or None."""
    label = collapsed_label(predicted, gold, n)
    if label is None:
        return None
    return (
        f"WARNING {name}: collapsed to one label: {100 * predicted[label]:.1f} % of {n:,} answers are {label!r}, "
        f"which is right for {100 * gold.get(label, 0.0):.1f} %"
    )

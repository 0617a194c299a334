"""How tables write scores, differences, p-values and label shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from d2e_sft.util.table import NONE, percent, percent_interval
from eval.score.statistics import Difference, Interval

if TYPE_CHECKING:
    from eval.compare.compare import Score

Part = Literal["subsets", "kinds", "groups", "faithfulness"]  # the part of a comparison to show
_COLLAPSED = 0.95
_ENOUGH = 10  # with fewer samples, one label may take all by chance
_BAR = 20
_MARKS = {"positive": "█", "negative": "░", "other": "·"}
LABELS = tuple(_MARKS)


def with_interval(score: Interval | None) -> str:
    """A fraction with its interval in percent: `61.3 [58.2, 64.4]`."""
    return NONE if score is None else percent_interval(score.mean, score.low, score.high)


def mean_of(score: Interval | None) -> str:
    """A fraction in percent without its interval."""
    return percent(None if score is None else score.mean)


def points(difference: Difference | None, *, star: bool = True, unit: str = "") -> str:
    if difference is None:
        return NONE
    low, high = 100 * difference.low, 100 * difference.high
    mark = " *" if star and difference.significant else ""
    return f"{100 * difference.mean:+z.1f}{unit}" + ("" if math.isinf(low) else f" [{low:+z.1f}, {high:+z.1f}]{mark}")


def with_star(score: Score | None) -> str:
    """A score with its interval, and the mark of a significant difference to the first run."""
    is_other = score is not None and score.change is not None and score.change.significant
    return with_interval(score) + " *" * is_other


def tested(show: Callable[[Difference | None], str]) -> Callable[[Score | None], str]:
    """Write a score's difference to the first run with `show`; empty for the first run itself."""

    def shown(score: Score | None) -> str:
        return NONE if score is None else "" if score.change is None else show(score.change)

    return shown


gain = tested(points)


def short_p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def corrected_p(difference: Difference | None) -> str:
    """A difference's p-value, corrected where `holm` was applied."""
    if difference is None:
        return NONE
    return short_p(difference.p_value if difference.adjusted_p is None else difference.adjusted_p)


def p_value(difference: Difference | None) -> str:
    """A difference's p-value, followed by the corrected one in brackets."""
    if difference is None:
        return NONE
    corrected = "" if difference.adjusted_p is None else f" ({short_p(difference.adjusted_p)})"
    return short_p(difference.p_value) + corrected


def shares_in_percent(shares: Mapping[str, float]) -> str:
    """`99.2 / 0.8 / 0.0`: positive, negative, and outputs without a label, which gold shares lack."""
    return " / ".join(percent(shares[label]) for label in LABELS if label in shares)


def share_bar(shares: Mapping[str, float]) -> str:
    """The shares as a bar of 20 characters: █ positive, ░ negative, · no label."""
    ends, total = [], 0.0
    for label in LABELS:
        total += shares.get(label, 0.0)
        ends.append(round(_BAR * total))
    widths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return "".join(mark * width for mark, width in zip(_MARKS.values(), widths, strict=True))


def collapse_warning(name: str, predicted: Mapping[str, float], gold: Mapping[str, float], n: int) -> str | None:
    """A warning if one label takes at least 95 % of n predictions, although it is not the gold one as often."""
    label = max(("positive", "negative"), key=lambda name: predicted.get(name, 0.0))
    if n < _ENOUGH or not predicted.get(label, 0.0) >= _COLLAPSED > gold.get(label, 0.0):
        return None
    return (
        f"WARNING {name}: collapsed to one label: {percent(predicted[label])} % of {n:,} answers are {label!r}, "
        f"which is right for {percent(gold.get(label, 0.0))} %"
    )

"""Label shares in words and bars, and the warning about a collapse to one label."""

from __future__ import annotations

import pytest

from eval.compare.figures import collapse_warning, share_bar, shares_in_percent

GOLD = {"positive": 0.5, "negative": 0.5}


@pytest.mark.parametrize(
    ("shares", "bar"),
    [
        ({"positive": 1.0, "negative": 0.0, "other": 0.0}, "█" * 20),
        ({"positive": 0.5, "negative": 0.25, "other": 0.25}, "█" * 10 + "░" * 5 + "·" * 5),
        ({"positive": 1 / 3, "negative": 1 / 3, "other": 1 / 3}, "█" * 7 + "░" * 6 + "·" * 7),
        (GOLD, "█" * 10 + "░" * 10),
    ],
)
def test_a_bar_is_always_20_characters_long(shares: dict[str, float], bar: str) -> None:
    assert share_bar(shares) == bar


def test_shares_are_in_percent_and_gold_has_no_third() -> None:
    assert shares_in_percent({"negative": 0.008, "positive": 0.992, "other": 0.0}) == "99.2 / 0.8 / 0.0"
    assert shares_in_percent(GOLD) == "50.0 / 50.0"


def test_one_label_for_nearly_all_is_a_warning_unless_it_is_the_gold_one() -> None:
    collapsed = {"positive": 0.02, "negative": 0.96, "other": 0.02}
    warning = collapse_warning("tracie (temporal)", collapsed, GOLD, 1_000)
    assert warning is not None
    assert warning.startswith(
        "WARNING tracie (temporal): collapsed to one label: 96.0 % of 1,000 answers are 'negative'"
    )
    assert "50.0 %" in warning
    assert collapse_warning("tracie", collapsed, {"positive": 0.04, "negative": 0.96}, 1_000) is None
    assert collapse_warning("tracie", {"positive": 0.06, "negative": 0.94, "other": 0.0}, GOLD, 1_000) is None
    assert collapse_warning("tracie", collapsed, GOLD, 9) is None, "nine answers may agree by chance"

"""A text may still refer to an entity by an inflection, its initials or one of its heads."""

from __future__ import annotations

import pytest

from data_builders.swap.revise import has_traces, head


@pytest.mark.parametrize(
    ("entity", "rest", "traces"),
    [
        ("red barn", "The barn was old.", True),
        ("red barn", "A red hat.", False),
        ("the hook and the mask", "Move the hook.", True),
        ("Israel", "the Israeli side", True),
        ("British Broadcasting Corporation", "the BBC said", True),
        ("Darlington Works", "it works", False),
        ("28 days", "28 hours", False),
    ],
)
def test_traces(entity: str, rest: str, traces: bool) -> None:
    assert has_traces(entity, "Oslo", rest, frozenset()) == traces


def test_the_head_is_the_last_word_before_a_preposition() -> None:
    assert [head(phrase) for phrase in ("the level of risk", "a red barn")] == ["level", "barn"]

"""Which occurrences of two words are the events, and the text with them marked."""

from __future__ import annotations

import pytest

from data_builders.text.events import find_events, mark_events

_TEXT = "It rained, stopped and rained."


@pytest.mark.parametrize(
    ("events", "near", "found"),
    [
        (("rained", "rained"), (3, 23), ("rained", "rained")),
        # The nearest "rained" is the last one, which stands after the only "stopped".
        (("rained", "stopped"), (22, 11), ("rained", "stopped")),
        (("rai", "stop"), (0, 11), ("rained", "stopped")),
        (("ned", "topped"), (0, 0), ("ned", "topped")),  # no word begins with them
    ],
)
def test_the_nearest_pair_in_order_is_found(
    events: tuple[str, str], near: tuple[float, float], found: tuple[str, str]
) -> None:
    spans = find_events(_TEXT, events, near)
    assert spans is not None
    assert tuple(_TEXT[start:end] for start, end in spans) == found
    assert spans[0][0] < spans[1][0]


@pytest.mark.parametrize("events", [("stopped", "It"), ("snowed", "rained"), ("rained", "snowed")])
def test_nothing_is_found_where_the_first_never_precedes_the_second(events: tuple[str, str]) -> None:
    assert find_events(_TEXT, events, (0, 0)) is None


def test_both_events_are_marked() -> None:
    spans = find_events(_TEXT, ("rained", "stopped"), (3, 11))
    assert spans is not None
    assert mark_events(_TEXT, *spans) == "It <e1>rained</e1>, <e2>stopped</e2> and rained."

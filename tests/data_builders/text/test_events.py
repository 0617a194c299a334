"""Two events are found at their nearest occurrences and marked."""

from __future__ import annotations

import random
import re
import time
from itertools import product

import pytest

from data_builders.sources.conflict.matres import find_events

_TEXT = "It rained, stopped and rained."


@pytest.mark.parametrize(
    ("events", "near", "found"),
    [
        (("rained", "rained"), (3, 23), ("rained", "rained")),
        # The nearest "rained" is the last one, but it is after the only "stopped".
        (("rained", "stopped"), (22, 11), ("rained", "stopped")),
        (("rai", "stop"), (0, 11), ("rained", "stopped")),
        (("ned", "topped"), (0, 0), ("ned", "topped")),  # no word begins with them
    ],
)
def test_the_nearest_pair_in_order_is_found(
    events: tuple[str, str], near: tuple[float, float], found: tuple[str, str]
) -> None:
    spans = find_events(_TEXT, events, near)
    assert tuple(_TEXT[start:end] for start, end in spans) == found
    assert spans[0][0] < spans[1][0]


@pytest.mark.parametrize("events", [("stopped", "It"), ("snowed", "rained"), ("rained", "snowed")])
def test_nothing_is_found_if_the_first_never_precedes_the_second(events: tuple[str, str]) -> None:
    assert find_events(_TEXT, events, (0, 0)) is None


def test_the_pair_is_the_nearest_of_all_pairs() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choice("ab c_²") for _ in range(draw.randrange(1, 25)))
        near = (draw.uniform(-3, 25), draw.uniform(-3, 25))
        first, second = (
            [found.start() for found in re.finditer(rf"(?<![^\W\d_]){event}", text)]
            or [found.start() for found in re.finditer(event, text)]
            for event in "ab"
        )
        every = [pair for pair in product(first, second) if pair[0] < pair[1]]
        best = min(every, key=lambda pair: abs(pair[0] - near[0]) + abs(pair[1] - near[1]), default=None)
        spans = find_events(text, ("a", "b"), near)
        assert (spans and (spans[0][0], spans[1][0])) == best


def test_a_word_with_a_hundred_thousand_occurrences_is_found_quickly() -> None:
    started = time.process_time()
    assert find_events("a " * 100_000, ("a", "a"), (1e4, 2e4)) == ((10_000, 10_001), (20_000, 20_001))
    assert time.process_time() - started < 2

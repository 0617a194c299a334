"""Readers of replies: what each takes for an answer, and what for none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eval.systems.crepe.gold import EQUALLY, LESS, MORE
from eval.systems.crepe.parse import (
    Parse,
    changes_from_first,
    changes_of,
    read_change,
    read_code,
    read_lettered_levels,
    read_level,
    read_option,
    read_yes_or_no,
)

ENDLESS = "9" * 5_000


@pytest.mark.parametrize(
    ("reader", "reply", "expected"),
    [
        (read_level, "very likely", 3),
        (read_level, "Likely.", 2),
        (read_level, "unlikely", 1),
        (read_level, "It is not very likely", 1),
        (read_level, "Very unlikely!", 0),
        (read_level, "Follow up: Is it likely?\nIntermediate answer: likely\nAnswer: very unlikely", 0),
        (read_level, "Answer: likely\nFollow up: ...\nIntermediate answer: unlikely", 2),
        (read_level, "Yes.", None),
        (read_level, "", None),
        (read_yes_or_no, "Yes.", 1),
        (read_yes_or_no, "no", 0),
        (read_yes_or_no, "No, yes would be wrong", 0),
        (read_yes_or_no, "It is unlikely", 0),
        (read_yes_or_no, "very likely", 1),
        (read_yes_or_no, "Nobody", None),
        (read_change, 'It must be wet. Therefore the likelihood change is "more likely".', MORE),
        (read_change, 'The likelihood change is "equally likely".\n\nThen the likelihood change is less likely', LESS),
        (read_change, "It was more likely before. Now less likely", LESS),
        (read_change, 'the likelihood change is "equally likely". It is not more likely.', EQUALLY),
        (read_change, "It was more likely before. Now less likely. The likelihood change is", LESS),  # cut off
        (read_change, 'The likelihood change is "less likely". But then the likelihood change is', LESS),
        (read_change, "I cannot tell.", None),
        (read_option, "Options[0]", MORE),
        (read_option, " Options[ 1 ]", LESS),
        (read_option, "[2]", EQUALLY),
        (read_option, '"less likely"', LESS),
        (read_option, "Options[3]", None),
    ],
)
def test_a_reply_is_read(reader: Callable[[str], int | None], reply: str, expected: int | None) -> None:
    assert reader(reply) == expected


@pytest.mark.parametrize(
    ("reply", "levels"),
    [
        ("Here:\nStep 1: (A) very likely\n- step 2: (C)\nStep 4: unlikely\nStep 2: (A)\nStep 9: (A)", [3, 1, None, 1]),
        (f"Step {ENDLESS}: (A) very likely\nStep 2: (B) likely", [None, 2, None, None]),
        ("It rains.", [None] * 4),
    ],
)
def test_a_line_for_each_step_says_its_level(reply: str, levels: list[int | None]) -> None:
    assert read_lettered_levels(reply, 4) == levels


@pytest.mark.parametrize(
    ("compare", "levels", "labels"),
    [
        (changes_of, [0, 3, 3, 1], [MORE, EQUALLY, LESS]),
        (changes_of, [1, None, 1, 0], [None, EQUALLY, LESS]),
        (changes_of, [None, 2, 3], [None, MORE]),
        (changes_of, [], []),
        (changes_from_first, [1, 1, 0, None, 0, 1], [EQUALLY, EQUALLY, LESS, None, EQUALLY, MORE]),
        (changes_from_first, [None, 1], [None, MORE]),  # officially the first readable level is a change
        (lambda levels: changes_from_first(levels, likely=2), [None, 1], [None, LESS]),
        (changes_from_first, [], []),
    ],
)
def test_each_level_is_compared_with_the_last_readable_one(compare: Any, levels: Any, labels: Any) -> None:
    assert compare(levels) == labels


CODE = """\
    def boil(self):
        self.kettle.hot = True
        self.event0.change = "more likely"  # burn
        self.event1.change = "equally likely"
    def whatever_it_is_called(self):
        self.event0.change = "likelier"
    def wait(self):
        self.kettle.hot = False
        self.event0.subevent.change = "more likely"
        self.event0.change = "less likely"
        self.event7.change = "less likely"
    def beyond(self):
        self.event0.change = "more likely"
"""
LABELS = [[MORE, EQUALLY], [None, None], [LESS, None]]
HEADER = "class Make_Tea:\n    # Start.\n\n    def __init__(self, event0):\n        self.event0 = event0\n"


def change(event: str, label: str) -> str:
    return f'self.event{event}.change = "{label} likely"\n'


@pytest.mark.parametrize(
    ("reply", "parse", "labels"),
    [
        (CODE, "official", LABELS),
        (f"Here it is:\n```python\n{CODE}```\nDone.", "official", LABELS),
        (HEADER + CODE, "official", LABELS),
        ("def make_tea(event0):\n    event0 = event0\n" + CODE.replace("self.event", "event"), "official", LABELS),
        # The official reading ends at a blank line.
        (CODE.replace("    def wh", "\n    def wh"), "official", [[MORE, EQUALLY], [None, None], [None, None]]),
        (CODE.replace("    def wh", "\n    def wh"), "lenient", LABELS),
        # Lines before the first function belong to the first step.
        (change("0", "less") + "def a(self):\n" + change("1", "more") + "def b(self):", "official", [[LESS, MORE]]),
        # Officially "equally likely" does not undo a change.
        ("def a(self):\n" + change("0", "more") + change("0", "equally"), "official", [[MORE, None]]),
        ("def a(self):\n" + change("0", "more") + change("0", "equally"), "lenient", [[EQUALLY, None]]),
        # The official reading takes one digit of an event's number.
        ("def a(self):\n" + change("11", "more"), "official", [[None, MORE]]),
        ("def a(self):\n" + change("11", "more"), "lenient", [[None, None]]),
        ("def a(self):\n" + change(ENDLESS, "more"), "lenient", [[None, None]]),
        # The lenient reading takes other quotes and spaces.
        ("def a(self):\n  self.event0.change='less likely'", "lenient", [[LESS, None]]),
        ("def a(self):\n  self.event0.change='less likely'", "official", [[None, None]]),
    ],
)
def test_functions_are_steps_by_their_place(reply: str, parse: Parse, labels: list[list[int | None]]) -> None:
    expected = [*labels, *[[None, None]] * (3 - len(labels))]
    assert read_code(reply, 3, 2, parse).labels == expected


def test_attributes_of_objects_are_entity_changes() -> None:
    found = read_code(CODE, 3, 2, "official").entities
    assert [[(c.entity, c.attribute, c.change) for c in changes] for changes in found] == [
        [("kettle", "hot", "True")],
        [],
        [("kettle", "hot", "False")],
    ]

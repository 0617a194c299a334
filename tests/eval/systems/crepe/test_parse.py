"""Readers of replies: what each takes for an answer, and what for none."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        ("very likely", 3),
        ("Likely.", 2),
        ("unlikely", 1),
        ("It is not very likely", 1),
        ("Very unlikely!", 0),
        ("Follow up: Is it likely?\nIntermediate answer: likely\nAnswer: very unlikely", 0),
        ("Answer: likely\nFollow up: ...\nIntermediate answer: unlikely", 2),
        ("Yes.", None),
        ("", None),
    ],
)
def test_levels(reply: str, level: int | None) -> None:
    assert read_level(reply) == level


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Yes.", 1),
        ("no", 0),
        ("No, yes would be wrong", 0),
        ("It is unlikely", 0),
        ("very likely", 1),
        ("Nobody", None),
    ],
)
def test_yes_and_no(reply: str, value: int | None) -> None:
    assert read_yes_or_no(reply) == value


def test_each_level_is_compared_with_the_last_that_could_be_read() -> None:
    assert changes_of([0, 3, 3, 1]) == [MORE, EQUALLY, LESS]
    assert changes_of([1, None, 1, 0]) == [None, EQUALLY, LESS]
    assert changes_of([None, 2, 3]) == [None, MORE]
    assert changes_of([]) == []


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ('It must be wet. Therefore the likelihood change is "more likely".', MORE),
        ('The likelihood change is "equally likely".\n\nThen the likelihood change is less likely', LESS),
        ("It was more likely before. Now less likely", LESS),
        ('the likelihood change is "equally likely". It is not more likely.', EQUALLY),
        ("I cannot tell.", None),
    ],
)
def test_chains_of_thought(reply: str, label: int | None) -> None:
    assert read_change(reply) == label


def test_a_chain_of_thought_that_was_cut_off_ends_in_its_last_label() -> None:
    assert read_change("It was more likely before. Now less likely. The likelihood change is") == LESS
    assert read_change('The likelihood change is "less likely". But then the likelihood change is') == LESS


@pytest.mark.parametrize(
    ("reply", "label"),
    [("Options[0]", MORE), (" Options[ 1 ]", LESS), ("[2]", EQUALLY), ('"less likely"', LESS), ("Options[3]", None)],
)
def test_options_of_flat_code(reply: str, label: int | None) -> None:
    assert read_option(reply) == label


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


def test_functions_are_steps_by_their_place() -> None:
    found = read_code(CODE, 3, 2, "official")
    assert found.labels == [[MORE, EQUALLY], [None, None], [LESS, None]]
    assert [[(c.entity, c.attribute, c.change) for c in changes] for changes in found.entities] == [
        [("kettle", "hot", "True")],
        [],
        [("kettle", "hot", "False")],
    ]


def test_the_official_reading_ends_at_a_blank_line() -> None:
    reply = CODE.replace("    def whatever", "\n    def whatever")
    assert read_code(reply, 3, 2, "official").labels == [[MORE, EQUALLY], [None, None], [None, None]]
    assert read_code(reply, 3, 2, "lenient").labels == read_code(CODE, 3, 2, "official").labels


def test_what_stands_before_the_first_function_belongs_to_the_first_step() -> None:
    reply = 'self.event0.change = "less likely"\ndef boil(self):\nself.event1.change = "more likely"\ndef b(self):'
    assert read_code(reply, 2, 2, "official").labels == [[LESS, MORE], [None, None]]


def test_equally_likely_does_not_take_a_change_back_officially() -> None:
    reply = 'def a(self):\nself.event0.change = "more likely"\nself.event0.change = "equally likely"'
    assert read_code(reply, 1, 1, "official").labels == [[MORE]]
    assert read_code(reply, 1, 1, "lenient").labels == [[EQUALLY]]


def test_the_official_reading_takes_one_digit_of_an_events_number() -> None:
    reply = 'def a(self):\nself.event11.change = "more likely"'
    assert read_code(reply, 1, 12, "official").labels[0][1] == MORE
    assert read_code(reply, 1, 12, "lenient").labels[0][11] == MORE


def test_fences_and_repeated_headers_are_passed_over() -> None:
    fenced = f"Here it is:\n```python\n{CODE}```\nDone."
    repeated = (
        "class Make_Tea:\n    # Start.\n\n    def __init__(self, event0):\n        self.event0 = event0\n" + CODE
    )
    nested = "def make_tea(event0, event1):\n    event0 = event0\n" + CODE.replace("self.event", "event")
    for reply in (fenced, repeated, nested):
        assert read_code(reply, 3, 2, "official").labels == [[MORE, EQUALLY], [None, None], [LESS, None]], reply


def test_the_lenient_reading_takes_other_quotes_and_spaces() -> None:
    reply = "def a(self):\n  self.event0.change='less likely'"
    assert read_code(reply, 1, 1, "lenient").labels == [[LESS]]
    assert read_code(reply, 1, 1, "official").labels == [[None]]


def test_likelihoods_are_compared_from_the_first_step_on() -> None:
    assert changes_from_first([1, 1, 0, None, 0, 1]) == [EQUALLY, EQUALLY, LESS, None, EQUALLY, MORE]
    assert changes_from_first([None, 1]) == [None, MORE], "another answer than none, as officially"
    assert changes_from_first([None, 1], likely=2) == [None, LESS]
    assert changes_from_first([]) == []


def test_a_line_for_each_step_says_its_level() -> None:
    reply = "Here:\nStep 1: (A) very likely\n- step 2: (C)\nStep 4: unlikely\nStep 2: (A)\nStep 9: (A)"
    assert read_lettered_levels(reply, 4) == [3, 1, None, 1]
    assert read_lettered_levels("It rains.", 2) == [None, None]


@pytest.mark.parametrize("parse", ["official", "lenient"])
def test_a_number_without_end_names_no_step_and_no_event(parse: Parse) -> None:
    endless = "9" * 5_000
    read = read_code(f'def one():\n    event{endless}.change = "more likely"\n', 1, 12, parse)
    assert read.labels == ([[None] * 9 + [MORE] + [None] * 2] if parse == "official" else [[None] * 12])
    assert read_lettered_levels(f"Step {endless}: (A) very likely\nStep 2: (B) likely", 2) == [None, 2]

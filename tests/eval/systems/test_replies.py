"""What each benchmark reads in a reply: one table of reader, text and what is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eval.systems.boxes.answers import contents_of, in_words_of_t5, read_all, read_one
from eval.systems.crepe.code import most_frequent
from eval.systems.crepe.gold import EQUALLY, LESS, MORE
from eval.systems.crepe.parse import (
    read_change,
    read_lettered_levels,
    read_level,
    read_option,
    read_truth,
    read_yes_or_no,
)
from eval.systems.crepe.prompts import clause
from eval.systems.openpi2.clusters import parse_groups
from eval.systems.openpi2.gold import normalise
from eval.systems.openpi2.planning import Written, parse_pddl
from eval.systems.openpi2.salience import first_integer
from eval.systems.openpi2.schemata import parse_schema
from eval.systems.openpi2.states import parse_change, parse_sentences, parse_states
from eval.systems.wiqa.benchmark import WIQA, polarity_of
from eval.systems.wiqa.gold import label_of

ENDLESS = "9" * 5_000
MOST_OFTEN = """        event.precondition = ("kettle", "hot")
    def pour(self):
        event = "I burn my hand."
        event.precondition = \\
            ('Kettle', "hot")
    def wait(self):
        event.precondition = ("tea", "cold")"""
DOMAIN, PROBLEM = "(define (domain tea) (:types kettle)) ; a smile :)\n", "(define (problem p) (:goal (full k)))"
CREPE = [
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
    # The answer is the one to the original question.
    (read_truth, "#1 Is it?\nTrue\nTherefore, the answer to the original question is false.", False),
    (read_truth, "the answer to the original question is: Yes", True),
    (read_truth, "#1 Is the answer True?\nyes", None),
    (
        lambda reply: read_lettered_levels(reply, 4),
        "Here:\nStep 1: (A) very likely\n- step 2: (C)\nStep 4: unlikely\nStep 2: (A)\nStep 9: (A)",
        [3, 1, None, 1],
    ),
    (
        lambda reply: read_lettered_levels(reply, 4),
        f"Step {ENDLESS}: (A) very likely\nStep 2: (B) likely",
        [None, 2, None, None],
    ),
    # The most frequent precondition counts, and of several the first.
    (most_frequent, MOST_OFTEN, ("kettle", "hot")),
    (most_frequent, 'precondition = ("tea", "cold")\nprecondition = ("kettle", "hot")', ("tea", "cold")),
    (most_frequent, 'precondition = ("the cook\'s hand", "bare")', ("the cook's hand", "bare")),
    (most_frequent, 'event.precondition = "hot"', None),
    (clause, "The tea is cold.", "the tea is cold"),
    (clause, "I’m late.", "I’m late"),
    (clause, "“Stop” is said.", "“Stop” is said"),
    (clause, "TV is on. ", "TV is on"),
    (clause, "A tit moves in.", "a tit moves in"),
]
WIQA_REPLIES = [
    (lambda reply: WIQA.read_answer(reply, None), reply, answer)
    for reply, answer in (
        ("The effect is less, not more.", "less"),
        ("No effect.", "no_effect"),
        ("no_effect", "no_effect"),
        ("It does not affect it.", "no_effect"),
        ("Rain is more likely here. Answer: less", "less"),
        ("(B)", "less"),
        ("C. because", "no_effect"),
        ("Because of rain", None),
        ("moreover", None),
    )
]
# The official names of labels, and the first word of the lexicon, which decides.
WIQA_NAMES = [
    *((label_of, name, "more") for name in ("RESULTS_IN", "correct effect", "+", "MORE")),
    *((label_of, name, "less") for name in ("opposite", "NOT_RESULTS_IN", "-", "b")),
    *((label_of, name, "no_effect") for name in ("NO_EFFECT", "no effect", "none")),
    (label_of, "moreover", None),
    (polarity_of, "more rain", 1),
    (polarity_of, "FEWER bees, more honey", -1),
    (polarity_of, "there is no rain", -1),
    (polarity_of, "dark clouds", None),
]
BOXES = [
    (contents_of, "the cup, the hat and the Flav-R-Straw.", {"cup", "hat", "Flav-R-Straw"}),
    *((in_words_of_t5, text, "is empty") for text in ("nothing.", "is empty", "contains nothing")),
    *((in_words_of_t5, text, "contains the cup") for text in ("the cup.", "contains the cup")),
    (
        lambda reply: read_all(reply, ["Box 0", "Box 1", "Box 2", "Box 10", "Box 3"]),
        "Box 0 contains the cup, the hat and the pen, Box 1 contains nothing, Box 2 is empty, and Box 10 contains x.",
        ["the cup, the hat and the pen", "nothing", "is empty", "x", None],
    ),
    (
        lambda reply: read_all(reply, ["Box 0", "Box 1"]),  # the first mention counts
        "Box 0 contains the cup.\nBox 1 contains the hat.\nBox 0 contains the pen.",
        ["the cup", "the hat"],
    ),
    (lambda reply: read_one(reply, "Box 1"), "Box 1 contains the hat.", "the hat"),
    (lambda reply: read_one(reply, "Box 1"), "the hat\nand more", "the hat"),
    (lambda reply: read_one(reply, "Box 1"), "Box 2 contains the hat.", None),  # it may not name another box
    (lambda reply: read_one(reply, "Box 1"), "  \n", None),
]
OPENPI2 = [
    # A schema is split at closing brackets.
    (parse_schema, "eggs (shape), flour (color,location), ", {"eggs": ["shape"], "flour": ["color", "location"]}),
    (parse_schema, "eggs (shape).", {"eggs": ["shape"]}),
    (parse_schema, "eggs (shape), eggs (size)", {"eggs": ["shape", "size"]}),
    (parse_schema, "eggs, flour", {}),
    (parse_schema, "eggs ()", {}),
    (parse_schema, "pan (heat), and the lid", {"pan": ["heat"]}),
    # One leading article is stripped.
    *((normalise, name, bare) for name, bare in (("The Kettle", "kettle"), ("a the cup", "the cup"), ("an a", "a"))),
    (normalise, "anise", "anise"),
    (parse_states, " cool before and hot afterwards. ", ("cool", "hot")),
    (parse_states, "cool before and hot after it", ("cool", "hot")),
    (parse_states, "Sure!\nBefore: in the pan\nAfter: on the plate\n", ("in the pan", "on the plate")),
    (parse_states, "It gets hot.", ("Error", "Error")),
    (
        parse_sentences,
        "- heat of pan was low\n  - size of egg was big",
        ["heat of pan was low", "size of egg was big"],
    ),
    (parse_sentences, "", [""]),  # as officially, where it is part of every gold sentence
    (parse_change, "heat of pan was low before and high after", ("pan", "heat", "low", "high")),
    (
        parse_change,
        "color of the eggs were white before and brown afterwards.",
        ("the eggs", "color", "white", "brown"),
    ),
    (parse_change, "the pan gets hot", None),
    (parse_change, "heat of pan was low before", None),
    (parse_groups, "The groups are:\n- ['a', \"b's\"]\n- ['c']", [("a", "b's"), ("c",)]),
    (parse_groups, "['a', 'b'],\n['c'", [("a", "b"), ("c",)]),
    (parse_groups, "- ['a', 'b", [("a", "b")]),
    (parse_groups, "- [a, b]\nnothing\n- [1, 2]\n- []", []),
    # Salience is the first integer, or 1.
    *((first_integer, reply, number) for reply, number in (("4 - it matters", 4), ("Pan: 35", 35), ("much", 1))),
    (parse_pddl, f"Here:\n```pddl\n{DOMAIN}\n```\n{PROBLEM} Done (really).", (DOMAIN.partition(" ;")[0], PROBLEM)),
    (parse_pddl, "(DEFINE (Domain x))", ("(DEFINE (Domain x))", "")),
    (parse_pddl, "( define ( problem x ) (:init", ("", "( define ( problem x ) (:init")),
    (parse_pddl, "I cannot.", ("", "")),
]


@pytest.mark.parametrize(("reader", "reply", "expected"), [*CREPE, *WIQA_REPLIES, *WIQA_NAMES, *BOXES, *OPENPI2])
def test_a_reply_is_read(reader: Callable[[str], Any], reply: str, expected: Any) -> None:
    found = reader(reply)
    assert ((found.domain, found.problem) if isinstance(found, Written) else found) == expected

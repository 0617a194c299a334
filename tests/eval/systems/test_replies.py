"""Replies of models to the systems: what is read from them, from code to words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.conversation import prompt_turns
from data_builders.sources import SOURCES
from eval.run.task import TaskItem
from eval.systems.boxes.answers import contents_of, in_words_of_t5, read_all, read_one
from eval.systems.crepe.benchmark import FAMILIES
from eval.systems.crepe.code import most_frequent
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
    read_truth,
    read_yes_or_no,
)
from eval.systems.crepe.prompts import clause, drawn_demonstrations, load_demonstrations
from eval.systems.openpi2.clusters import parse_groups
from eval.systems.openpi2.gold import normalise
from eval.systems.openpi2.planning import Written, parse_pddl
from eval.systems.openpi2.salience import first_integer
from eval.systems.openpi2.schemata import parse_schema
from eval.systems.openpi2.states import parse_change, parse_sentences, parse_states
from eval.systems.wiqa.benchmark import WIQA, polarity_of
from eval.systems.wiqa.gold import label_of
from tests.eval.systems import crepe_perfect as perfect
from tests.eval.systems.crepe_perfect import FROM_FIRST, rule_of, write_events
from tests.eval.systems.crepe_procedures import BURN, run
from tests.eval.systems.files import save

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


PAIRS = [(p, e) for p, f in FAMILIES.items() for e in f.entities]
FORMS = [
    *((prompt, entities, "official") for prompt, entities in PAIRS),
    *((prompt, entities, "independent") for prompt, entities in PAIRS if FAMILIES[prompt].by_step),
]


def asked(folder: Path, say: Any, prompt: str, entities: str, structure: str, **options: Any) -> Any:
    """Ask `say` by a form of prompt; predicted states come from a file."""
    if entities == "predicted":
        states = {"3": {"1": [{"entity": "kettle", "attribute": "hot", "change": "more likely"}]}, "5": {}}
        options["entities_file"] = save(folder / "states.json", states)
    return run(folder / "data", say, prompt=prompt, entities=entities, structure=structure, **options)


@pytest.mark.parametrize(("prompt", "entities", "structure"), FORMS)
def test_a_model_that_is_always_right_scores_one(tmp_path: Path, prompt: str, entities: str, structure: str) -> None:
    result, _ = asked(tmp_path, rule_of(prompt, entities, structure), prompt, entities, structure, shots=0)
    assert result.scores["unparsed"] == {"share": 0.0, "pairs": 0}
    if structure == "official" and prompt in FROM_FIRST:
        # Two pairs of the first step change.
        assert result.scores["confusion"] == [[4, 0, 0], [1, 1, 0], [1, 0, 1]]
    else:
        assert result.scores["macro_f1"] == result.scores["corrected"]["macro_f1"] == 1


@pytest.mark.parametrize(("prompt", "entities", "structure"), FORMS)
def test_unreadable_replies_are_no_change(tmp_path: Path, prompt: str, entities: str, structure: str) -> None:
    scores = asked(tmp_path, lambda _: "Hm?", prompt, entities, structure, shots=1)[0].scores
    assert scores["unparsed"] == {"share": 1.0, "pairs": 8}
    assert scores["macro_f1"] == scores["baselines"]["majority"]["macro_f1"]


def test_demonstrations_are_not_of_the_benchmark_and_agree_with_themselves(crepe_raw: Path) -> None:
    published = "".join(path.read_text(encoding="utf-8") for path in crepe_raw.glob("*.json"))
    for shown in load_demonstrations():
        for text in (shown.goal, *shown.steps, *(event.event for event in shown.events)):
            assert text not in published
        for event in shown.events:
            assert any(event.label(step) for step in range(1, len(shown.steps) + 1)), "something changes"
            assert all(
                (event.label(step) == 0) == (event.state_label(step) == 0) for step in range(1, len(shown.steps) + 1)
            )


def test_random_demonstrations_come_by_seed_and_by_event() -> None:
    def drawn(seed: int, *, by_event: bool) -> list[tuple[str, ...]]:
        return [
            tuple(event.event for event in shown.events) for shown in drawn_demonstrations(3, seed, by_event=by_event)
        ]

    assert drawn(4, by_event=True) == drawn(4, by_event=True)
    assert len({tuple(drawn(seed, by_event=True)) for seed in range(20)}) > 15
    assert all(len(set(drawn(seed, by_event=True))) == 3 for seed in range(20)), "no event twice"
    assert {len(events) for seed in range(5) for events in drawn(seed, by_event=True)} == {1}
    assert {len(events) for seed in range(5) for events in drawn(seed, by_event=False)} == {2}


def test_the_first_step_is_compared_with_nothing(tmp_path: Path) -> None:
    said = {"3/event0/step1": "unlikely", "3/event0/step2": "likely", "3/event0/step3": "Hm."}
    result, _ = run(tmp_path, lambda chat: said.get(chat.id, "likely"), prompt="text")
    predicted = [
        [row["change"] for row in block if row["type"] == "predicted_event"]
        for block in json.loads(result.files["crepe_predictions.json"])["3"]["steps"][1:]
    ]
    assert predicted == [[], ["more likely"], []]
    assert result.scores["unparsed"]["pairs"] == 1


def test_levels_are_compared_step_by_step(tmp_path: Path) -> None:
    replies = {"3/event0": "Step 1: (C) not very likely\nStep 2: (B)\nStep 3: very unlikely"}
    result, _ = run(tmp_path, lambda chat: replies.get(chat.id, ""), prompt="text_at_once")
    assert result.scores["unparsed"]["pairs"] == 5
    # Gold of event 0 is more, equally, less; predicted are equally, more, less.
    assert result.scores["confusion"] == [[3, 0, 1], [1, 1, 0], [2, 0, 0]]


def test_a_reply_may_repeat_the_code_before_its_step(tmp_path: Path) -> None:
    def repeat(chat: TaskItem) -> str:
        before = "\n".join(message["content"] for message in chat.messages[1:])
        return f"```python\n{before}\n{write_events(chat)}\n```"

    result, _ = run(tmp_path, repeat, entities="gold", shots=0)
    assert result.scores["macro_f1"] == 1


@pytest.mark.parametrize(
    ("more", "less", "label", "inconsistent"),
    [("True", "False", 2, 0), ("False", "True", 1, 0), ("False", "False", 0, 0), ("True", "True", 0, 8)],
)
def test_contradicting_answers_change_nil(tmp_path: Path, more: str, less: str, label: int, inconsistent: int) -> None:
    said = {"more": more, "less": less}
    result, _ = run(
        tmp_path,
        lambda chat: f"the answer to the original question is {said[chat.id.rpartition('/')[2]]}",
        prompt="two_questions",
    )
    assert [row[label] for row in result.scores["confusion"]] == [sum(row) for row in result.scores["confusion"]]
    assert result.scores["inconsistent"] == inconsistent
    assert result.scores["unparsed"]["pairs"] == 0


def test_a_trained_model_is_asked_as_trained(tmp_path: Path) -> None:
    source = SOURCES["strategyqa"]
    _, asker = run(tmp_path, perfect.say_true_or_false, prompt="two_questions")
    chat = asker.passes[0][1][0]
    row = prompt_turns(source.prompt, source.system, f"Is it more likely that {BURN.removesuffix('.')}?")
    assert (chat.messages, chat.imagined) == (row.messages("Boil the water."), row.messages(""))


ENDLESS_CREPE_REPLIES = "9" * 5_000


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
CODE_LABELS = [[MORE, EQUALLY], [None, None], [LESS, None]]
HEADER = "class Make_Tea:\n    # Start.\n\n    def __init__(self, event0):\n        self.event0 = event0\n"


def change(event: str, label: str) -> str:
    return f'self.event{event}.change = "{label} likely"\n'


@pytest.mark.parametrize(
    ("reply", "parse", "labels"),
    [
        (CODE, "official", CODE_LABELS),
        (f"Here it is:\n```python\n{CODE}```\nDone.", "official", CODE_LABELS),
        (HEADER + CODE, "official", CODE_LABELS),
        (
            "def make_tea(event0):\n    event0 = event0\n" + CODE.replace("self.event", "event"),
            "official",
            CODE_LABELS,
        ),
        # The official reading ends at a blank line.
        (CODE.replace("    def wh", "\n    def wh"), "official", [[MORE, EQUALLY], [None, None], [None, None]]),
        (CODE.replace("    def wh", "\n    def wh"), "lenient", CODE_LABELS),
        # Lines before the first function belong to the first step.
        (change("0", "less") + "def a(self):\n" + change("1", "more") + "def b(self):", "official", [[LESS, MORE]]),
        # Officially "equally likely" does not undo a change.
        ("def a(self):\n" + change("0", "more") + change("0", "equally"), "official", [[MORE, None]]),
        ("def a(self):\n" + change("0", "more") + change("0", "equally"), "lenient", [[EQUALLY, None]]),
        # The official reading takes one digit of an event's number.
        ("def a(self):\n" + change("11", "more"), "official", [[None, MORE]]),
        ("def a(self):\n" + change("11", "more"), "lenient", [[None, None]]),
        ("def a(self):\n" + change(ENDLESS_CREPE_REPLIES, "more"), "lenient", [[None, None]]),
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

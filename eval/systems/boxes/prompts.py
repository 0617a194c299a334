"""The prompts: two demonstrations as earlier turns, then all boxes at once or one box; or the wording of training.

The imagined conversation leaves the description of the asked scenario out; the demonstrations keep theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import Messages
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample
from d2e_sft.util.files import load_yaml
from eval.run.engines.conversation_task import Conversation
from eval.systems.boxes.contents import read_all
from eval.systems.boxes.gold import Question

Prompt = Literal["all_boxes", "one_box", "trained"]
Demonstrations = Literal["plain", "alternate"]
_FILE = Path(__file__).with_name("demonstrations.yaml")
_SYSTEM = (
    "You are told what some boxes hold and what is then done with their contents. Keep track of it, and say what is "
    "in {what} at the end, in the form of the earlier answers."
)


def all_boxes(state: Sequence[Question], shown: Demonstrations) -> Conversation:
    """One conversation about all boxes of a state."""
    turns = [_turn("user", _SYSTEM.format(what="every box"), system=True)]
    for example in _shown(shown)["shown"]:
        turns += [_turn("user", _ask_all(example["description"])), _turn("assistant", example["statement"])]
    return _conversation(f"line {state[0].line}", turns, _ask_all(state[0].description), _ask_all(""))


def one_box(question: Question, shown: Demonstrations) -> Conversation:
    """One conversation about one box."""
    turns = [_turn("user", _SYSTEM.format(what="one box"), system=True)]
    examples = _shown(shown)
    for example in examples["shown"]:
        box = examples["boxes"][example["asked"]]
        contents = read_all(example["statement"], [box])[0]
        asked = _ask_one(example["description"], box)
        turns += [_turn("user", asked), _turn("assistant", f"{box} contains {contents}.")]
    asked, imagined = _ask_one(question.description, question.box), _ask_one("", question.box)
    return _conversation(f"line {question.line}", turns, asked, imagined)


def as_trained(question: Question, prompts: PromptSet) -> Conversation:
    """The prompt that `d2e train` makes of the generator's rows."""
    sample = EventSample(
        id=f"line {question.line}",
        dataset="boxes",
        split="test",
        relation="temporal",
        format="qa",
        context=question.description,
        question=f"What does {question.box} contain?",
        answers=[question.answer],
    )
    views: tuple[View, View] = ("original", "imagined")
    original, imagined = (prompts.messages(sample, view) for view in views)
    return Conversation("boxes", sample.id, original, imagined)


def _conversation(name: str, turns: Messages, asked: str, imagined: str) -> Conversation:
    return Conversation("boxes", name, [*turns, _turn("user", asked)], [*turns, _turn("user", imagined)])


def _ask_all(description: str) -> str:
    return f"{_described(description)}Question: What does each box contain?"


def _ask_one(description: str, box: str) -> str:
    return f"{_described(description)}Question: What does {box} contain?"


def _described(description: str) -> str:
    return f"Description: {description}\n" if description else ""


def _turn(role: str, content: str, *, system: bool = False) -> dict[str, str]:
    return {"role": "system" if system else role, "content": content}


@functools.cache
def _shown(which: Demonstrations) -> dict[str, Any]:
    content: dict[str, Any] = load_yaml(_FILE.read_text(encoding="utf-8"))[which]
    return content

"""The prompts: two demonstrations as earlier turns, then all boxes at once or one box; or the wording of training.

The imagined conversation leaves the description of the asked scenario out; the demonstrations keep theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import Messages
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample
from eval.run.engines.conversation_task import Conversation
from eval.systems.boxes.answers import read_all
from eval.systems.boxes.gold import Question
from eval.systems.conversations import assistant, system, user, wording

Prompt = Literal["all_boxes", "one_box", "trained"]
Demonstrations = Literal["plain", "alternate"]
_SYSTEM = (
    "You are told what some boxes hold and what is then done with their contents. Keep track of it, and say what is "
    "in {what} at the end, in the form of the earlier answers."
)


def all_boxes(state: Sequence[Question], demonstrations: Demonstrations) -> Conversation:
    """One conversation about all boxes of a state."""
    turns = [system(_SYSTEM.format(what="every box"))]
    for example in wording("boxes/demonstrations")[demonstrations]["shown"]:
        turns += [_asked(example["description"], "each box"), assistant(example["statement"])]
    return _conversation(state[0], turns, "each box")


def one_box(question: Question, demonstrations: Demonstrations) -> Conversation:
    """One conversation about one box."""
    turns = [system(_SYSTEM.format(what="one box"))]
    examples = wording("boxes/demonstrations")[demonstrations]
    for example in examples["shown"]:
        box = examples["boxes"][example["asked"]]
        contents = read_all(example["statement"], [box])[0]
        turns += [_asked(example["description"], box), assistant(f"{box} contains {contents}.")]
    return _conversation(question, turns, question.box)


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


def _conversation(question: Question, turns: Messages, what: str) -> Conversation:
    original, imagined = ([*turns, _asked(description, what)] for description in (question.description, ""))
    return Conversation("boxes", f"line {question.line}", original, imagined)


def _asked(description: str, what: str) -> dict[str, str]:
    """The question about one box or each of them; without a description in the imagined view."""
    told = f"Description: {description}\n" if description else ""
    return user(f"{told}Question: What does {what} contain?")

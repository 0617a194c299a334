"""The prompts: all boxes at once or one box, after two demonstrations or none; or the wording of training.

In the form `chat` demonstrations are earlier turns. The form `cloze` is for models that were not trained to chat:
one text that ends in an unfinished statement (`Statement: Box 0 contains`), as in the paper. The imagined prompt
leaves out the description of the asked scenario and keeps those of the demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import EventSample
from eval.run.task import Conversation
from eval.systems.boxes.answers import read_all
from eval.systems.boxes.gold import Question
from eval.systems.conversations import assistant, system, user, wording

Prompt = Literal["all_boxes", "one_box", "trained"]
Form = Literal["chat", "cloze"]
Demonstrations = Literal["plain", "alternate", "none"]
_SYSTEM = (
    "You are told what some boxes hold and what is then done with their contents. Keep track of it, and say what is "
    "in {what} at the end, {how}."
)
_CLOZE = (
    "Each description says what some boxes hold and what is then done with their contents. The statement below it "
    "says what is in {what} at the end, {how}."
)
_NEXT_EXAMPLE = r"\n\s*\n|Description:"
_AS_SHOWN = "in the form of the earlier answers"
_ZERO_SHOT = {
    "every box": "in the form: Box 0 contains the A, Box 1 contains the B and the C, Box 2 contains nothing",
    "one box": "in the form: Box 0 contains the A and the B, or of an empty box: Box 0 contains nothing",
}


def all_boxes(state: Sequence[Question], demonstrations: Demonstrations, form: Form = "chat") -> Conversation:
    """Ask about all boxes of a state."""
    shown = [(example["description"], "each box", example["statement"]) for example in _shown(demonstrations)]
    if form == "cloze":
        return _cloze(state[0], shown, "every box")
    return _chat(state[0], shown, "every box", "each box")


def one_box(question: Question, demonstrations: Demonstrations, form: Form = "chat") -> Conversation:
    """Ask about one box."""
    shown = []
    for example in _shown(demonstrations):
        box = wording("boxes/demonstrations")[demonstrations]["boxes"][example["asked"]]
        contents = read_all(example["statement"], [box])[0]
        shown.append((example["description"], box, f"{box} contains {contents}."))
    if form == "cloze":
        return _cloze(question, shown, "one box")
    return _chat(question, shown, "one box", question.box)


def as_trained(question: Question, prompts: PromptSet) -> Conversation:
    """Return the prompt that `d2e train` makes from the generator's rows."""
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


def completed(question: Question, reply: str) -> str:
    """Return the statement that a reply to a `cloze` prompt completes, without further examples."""
    return f"{question.box} contains {re.split(_NEXT_EXAMPLE, reply)[0].strip()}"


def _shown(demonstrations: Demonstrations) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        [] if demonstrations == "none" else wording("boxes/demonstrations")[demonstrations]["shown"]
    )
    return found


def _chat(question: Question, shown: Sequence[tuple[str, str, str]], what: str, asked: str) -> Conversation:
    turns = [system(_SYSTEM.format(what=what, how=_AS_SHOWN if shown else _ZERO_SHOT[what]))]
    for description, whose, statement in shown:
        turns += [_asked(description, whose), assistant(statement)]
    original, imagined = ([*turns, _asked(description, asked)] for description in (question.description, ""))
    return Conversation("boxes", f"line {question.line}", original, imagined)


def _cloze(question: Question, shown: Sequence[tuple[str, str, str]], what: str) -> Conversation:
    begun = f"Statement: {question.box} contains"
    parts = [_CLOZE.format(what=what, how="as in the earlier ones" if shown else _ZERO_SHOT[what])]
    parts += [f"Description: {description}\nStatement: {statement}" for description, _, statement in shown]
    original, imagined = (
        [user("\n\n".join([*parts, last]))] for last in (f"Description: {question.description}\n{begun}", begun)
    )
    return Conversation("boxes", f"line {question.line}", original, imagined)


def _asked(description: str, what: str) -> dict[str, str]:
    """Return the question about one box or each box; the imagined view has no description."""
    told = f"Description: {description}\n" if description else ""
    return user(f"{told}Question: What does {what} contain?")

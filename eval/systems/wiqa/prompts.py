"""WIQA's questions as conversations; the imagined view has no paragraph, as in the paper's no-paragraph ablation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.files import load_yaml
from eval.run.engines.conversation_task import Conversation
from eval.systems.wiqa.labels import Label, label_of
from eval.systems.wiqa.questions import Question

_FILE = Path(__file__).with_name("prompts.yaml")
_ANSWER = re.compile(r"\b(no[ _-]?effect|no change|not affect|more|less)\b", re.IGNORECASE)
_MARKER = re.compile(r"\b(answer:|effect is)", re.IGNORECASE)
_LETTER = re.compile(r"\(?([ABC])\)?\s*(?:[.:)]|$)")


@cache
def _texts() -> dict[str, Any]:
    content: dict[str, Any] = load_yaml(_FILE.read_text(encoding="utf-8"))
    return content


def most_shots() -> int:
    """How many solved examples there are."""
    return len(_texts()["demonstrations"])


def conversation(dataset: str, question: Question, *, shots: int, paragraph: bool) -> Conversation:
    """A question after some solved ones.

    Args:
        paragraph: whether the question's paragraph is shown; without it the conversation is its imagined view.
    """
    opening: Messages = [{"role": "system", "content": _texts()["system"]}]
    for shown in _texts()["demonstrations"][:shots]:
        opening += [_user(shown["steps"], shown["stem"]), {"role": "assistant", "content": shown["answer"]}]
    imagined = [*opening, _user((), question.stem)]
    messages = [*opening, _user(question.steps, question.stem)] if paragraph else imagined
    return Conversation(dataset, question.id, messages, imagined, group=question.paragraph)


def _user(steps: Sequence[str], stem: str) -> dict[str, str]:
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    process = _texts()["process"].format(steps=listed) + "\n" if steps else ""
    return {"role": "user", "content": process + _texts()["question"].format(stem=stem)}


def read_answer(reply: str) -> Label | None:
    """The first effect that a reply names, behind "answer:" or "effect is" where it says so, or a choice's letter."""
    marker = _MARKER.search(reply)
    found = (marker and _ANSWER.search(reply, marker.end())) or _ANSWER.search(reply)
    if found:
        name = found[1].lower()
        return "no_effect" if name.startswith("no") else label_of(name)
    letter = _LETTER.match(reply.strip())
    return label_of(letter[1]) if letter else None

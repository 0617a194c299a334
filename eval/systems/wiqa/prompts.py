"""WIQA's questions as conversations; the imagined view has no paragraph, as in the paper's no-paragraph ablation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.conversations import assistant, system, user, wording
from eval.systems.wiqa.questions import Label, Question, label_of

_ANSWER = re.compile(r"\b(no[ _-]?effect|no change|not affect|more|less)\b", re.IGNORECASE)
_MARKER = re.compile(r"\b(answer:|effect is)", re.IGNORECASE)
_LETTER = re.compile(r"\(?([ABC])\)?\s*(?:[.:)]|$)")
# The system message, the form of a question, and the solved examples.
_WORDING: Any = wording("wiqa/prompts")


def most_shots() -> int:
    """Return the number of solved examples."""
    return len(_WORDING["demonstrations"])


def conversation(dataset: str, question: Question, *, shots: int, paragraph: bool) -> Conversation:
    """Ask a question after some solved ones; without its paragraph, the conversation is its imagined view."""
    opening: Messages = [system(_WORDING["system"])]
    for shown in _WORDING["demonstrations"][:shots]:
        opening += [_asked(shown["steps"], shown["stem"]), assistant(shown["answer"])]
    imagined = [*opening, _asked((), question.stem)]
    messages = [*opening, _asked(question.steps, question.stem)] if paragraph else imagined
    return Conversation(dataset, question.id, messages, imagined, group=question.paragraph)


def _asked(steps: Sequence[str], stem: str) -> dict[str, str]:
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    process = _WORDING["process"].format(steps=listed) + "\n" if steps else ""
    return user(process + _WORDING["question"].format(stem=stem))


def read_answer(reply: str) -> Label | None:
    """Return the first effect in a reply, after "answer:" or "effect is" if it has one, or a choice's letter."""
    marker = _MARKER.search(reply)
    found = (marker and _ANSWER.search(reply, marker.end())) or _ANSWER.search(reply)
    if found:
        name = found[1].lower()
        return "no_effect" if name.startswith("no") else label_of(name)
    letter = _LETTER.match(reply.strip())
    return label_of(letter[1]) if letter else None

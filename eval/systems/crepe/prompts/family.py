"""What a prompt family gets and gives, and how conversations of several turns are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.files import load_yaml
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.crepe.demonstrations import Demonstration
from eval.systems.crepe.entities import States
from eval.systems.crepe.gold import EntityChange, Procedure
from eval.systems.crepe.options import Entities, Parse, Prompt

_WORDING = Path(__file__).parents[1] / "wording.yaml"
# A model may answer nothing; no chat template minds this.
_SILENCE = "…"


@dataclass(frozen=True)
class Request:
    """What a family is asked for.

    Attributes:
        states: the entity changes that prompts give, by procedure; empty where they give none.
    """

    dataset: str
    procedures: Sequence[Procedure]
    prompt: Prompt
    entities: Entities
    demonstrations: Sequence[Demonstration]
    states: States
    parse: Parse


@dataclass(frozen=True)
class Answer:
    """What a model said about one procedure.

    Attributes:
        labels: [step][event]; None where no label could be read.
        entities: [step], the entity changes that the model wrote itself.
    """

    labels: list[list[int | None]]
    entities: list[list[EntityChange]] = field(default_factory=list)


Family = Callable[[Request, Asker], dict[str, Answer]]


@cache
def wording() -> dict[str, Any]:
    """The content of `wording.yaml`."""
    content: dict[str, Any] = load_yaml(_WORDING.read_text(encoding="utf-8"))
    return content


def system(text: str) -> dict[str, str]:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    """A model's message."""
    return {"role": "assistant", "content": text.strip() or _SILENCE}


_NOTHING = "…"


@dataclass(frozen=True)
class Dialogue:
    """A conversation in which the model answers turn after turn.

    Attributes:
        opening: system message and demonstrations.
        turns: what the user says, and the same without what has to be read.
    """

    id: str
    group: str
    opening: Messages
    turns: Sequence[tuple[str, str]]


def hold(asker: Asker, dataset: str, dialogues: Sequence[Dialogue], *, max_new_tokens: int) -> list[list[str]]:
    """The model's replies in each dialogue: one pass a turn, over all dialogues that go on."""
    replies: list[list[str]] = [[] for _ in dialogues]
    for turn in range(max((len(dialogue.turns) for dialogue in dialogues), default=0)):
        going = [place for place, dialogue in enumerate(dialogues) if turn < len(dialogue.turns)]
        conversations = [_so_far(dataset, dialogues[place], replies[place]) for place in going]
        answers = asker.ask(f"turn-{turn + 1:02}", conversations, max_new_tokens=max_new_tokens)
        for place, answer in zip(going, answers, strict=True):
            replies[place].append(answer)
    return replies


def _so_far(dataset: str, dialogue: Dialogue, replies: Sequence[str]) -> Conversation:
    messages, imagined = list(dialogue.opening), list(dialogue.opening)
    for turn, (said, hidden) in enumerate(dialogue.turns[: len(replies) + 1]):
        messages.append(user(said))
        imagined.append(user(hidden))
        if turn < len(replies):
            messages.append(assistant(replies[turn]))
            imagined.append(assistant(_NOTHING))  # a reply may tell of the steps
    return Conversation(dataset, dialogue.id, messages, imagined, group=dialogue.group)

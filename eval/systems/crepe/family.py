"""Families of prompts: what they are asked and answer, and the solved procedures of our own `demonstrations.yaml`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from d2e_sft.data.chat_template import CUED, Continuation, Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, assistant, user, wording
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, EntityChange, Procedure, States
from eval.systems.crepe.parse import Answer, Parse


class DemonstrationEvent(BaseModel):
    """An event and the one entity state that decides about it; see the data file for the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    event: str
    subevent: str
    entity: str
    attribute: str
    holds: list[bool]
    favours: bool
    because: str
    if_true: str
    if_false: str
    ask: str
    link: str

    def state(self, step: int) -> str:
        """Return the entity's state in words after a number of steps."""
        return self.if_true if self.holds[step] else self.if_false

    def is_likely(self, step: int) -> bool:
        """Return whether the event is likely after a number of steps."""
        return self.holds[step] == self.favours

    def label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the event."""
        return _change(self.is_likely(step - 1), self.is_likely(step))

    def state_label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the entity's state."""
        return _change(self.holds[step - 1], self.holds[step])


class Demonstration(BaseModel):
    """A procedure with its events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    goal: str
    steps: list[str]
    events: list[DemonstrationEvent]

    @model_validator(mode="after")
    def _a_state_for_the_start_and_each_step(self) -> Demonstration:
        for event in self.events:
            if len(event.holds) != len(self.steps) + 1:
                raise ValueError(f"{event.event}: {len(event.holds)} states; expected {len(self.steps) + 1}")
        return self

    @property
    def entity_changes(self) -> list[list[EntityChange]]:
        """What each step changes, in the form of the gold file."""
        return [
            [
                EntityChange(event.entity, event.attribute, LABELS[label])
                for event in self.events
                if (label := event.state_label(step)) != EQUALLY
            ]
            for step in range(1, len(self.steps) + 1)
        ]


def drawn_demonstrations(count: int, seed: int, *, by_event: bool) -> list[Demonstration]:
    """Draw demonstrations in random order, like appendix A; `by_event` among all events, each with its procedure."""
    bank = list(load_demonstrations())
    if by_event:
        bank = [shown.model_copy(update={"events": [event]}) for shown in bank for event in shown.events]
    return random.Random(f"demonstrations/{seed}").sample(bank, count)


def _change(before: bool, after: bool) -> int:
    if before == after:
        return EQUALLY
    return MORE if after else LESS


@cache
def load_demonstrations() -> tuple[Demonstration, ...]:
    """Return all demonstrations, in the file's order."""
    return tuple(map(Demonstration.model_validate, wording("crepe/demonstrations")))


Entities = Literal["none", "soft", "hard", "gold", "predicted"]
MOST_SHOTS = len(load_demonstrations())
SHOTS = 3  # section 4.1
YES_NO = ("yes", "no")
Turn = tuple[str, str]  # what the user says, and the same in the imagined view, without the steps
Labels = list[int | None]  # one per step


@dataclass(frozen=True)
class Request:
    """What a family is asked.

    Attributes:
        states: The entity changes that prompts give, by procedure; empty if they give none.
        independent: Ask about each step on its own; see `text_families`.
        by_likelihood: Take the likelier of yes and no instead of generating.
        style: How conversations become one text.
    """

    dataset: str
    procedures: Sequence[Procedure]
    prompt: str
    entities: Entities
    demonstrations: Sequence[Demonstration]
    states: States
    parse: Parse
    independent: bool = False
    by_likelihood: bool = False
    style: Continuation = CUED

    def conversation(self, name: str, opening: Messages, turn: Turn) -> Conversation:
        """Return one question after the opening, in both views."""
        original, imagined = ([*opening, user(text)] for text in turn)
        options = YES_NO if self.by_likelihood else ()
        return Conversation(self.dataset, name, original, imagined, group=self.prompt, options=options)


@dataclass(frozen=True)
class Family:
    """How some procedures are asked about.

    Attributes:
        ask: Returns the answer about each procedure.
        entities: The kinds of entity states that its prompts can have.
        shots: Number of demonstrations by default.
        by_event: A demonstration shows one of its events.
        by_step: The family has a form that asks for each step on its own.
        style: How its conversations become one text.
    """

    ask: Callable[[Request, Asker], dict[str, Answer]]
    entities: tuple[Entities, ...] = ("none",)
    shots: int = SHOTS
    by_event: bool = False
    by_step: bool = False
    style: Continuation = CUED


def hold(
    request: Request, asker: Asker, opening: Messages, turns: dict[str, list[Turn]], max_new_tokens: int
) -> dict[str, list[str]]:
    """Hold dialogues, one pass per turn, and return the replies in each.

    In the imagined view the replies are silent, because they may tell of the steps.
    """

    def next_turn(name: str, replies: Sequence[str]) -> Conversation:
        history, imagined = list(opening), list(opening)
        for (question, hidden), reply in zip(turns[name], replies, strict=False):
            history += [user(question), assistant(reply.strip())]
            imagined += [user(hidden), assistant("")]
        question, hidden = turns[name][len(replies)]
        views = [*history, user(question)], [*imagined, user(hidden)]
        return Conversation(request.dataset, name, *views, group=request.prompt)

    counts = {name: len(own) for name, own in turns.items()}
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "style": request.style}
    return ask_by_turns(asker, "turn-{:02}", counts, next_turn, read=str, **options)


def event_names(procedure: Procedure) -> list[str]:
    """Return the names of the conversations about a procedure's events."""
    return [f"{procedure.id}/event{number}" for number in range(len(procedure.events))]


def answers_by_event(request: Request, read: Callable[[str], Labels]) -> dict[str, Answer]:
    """Return the answers from the labels that `read` finds in the conversations about each event."""
    labels = {procedure.id: list(map(read, event_names(procedure))) for procedure in request.procedures}
    return {name: Answer([list(row) for row in zip(*events, strict=True)]) for name, events in labels.items()}

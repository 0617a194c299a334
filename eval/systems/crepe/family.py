"""What a family of prompts is asked and answers, and how its conversations are held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, assistant, user
from eval.systems.crepe.demonstrations import Demonstration, load_demonstrations
from eval.systems.crepe.gold import Procedure, States
from eval.systems.crepe.parse import Answer, Parse

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
    """

    ask: Callable[[Request, Asker], dict[str, Answer]]
    entities: tuple[Entities, ...] = ("none",)
    shots: int = SHOTS
    by_event: bool = False
    by_step: bool = False


def hold(
    request: Request, asker: Asker, opening: Messages, turns: dict[str, list[Turn]], max_new_tokens: int
) -> dict[str, list[str]]:
    """Hold dialogues, one pass per turn, and return the replies in each.

    Args:
        turns: by the dialogue's name. In the imagined view the replies are silent, because they may tell of the steps.
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
    return ask_by_turns(asker, "turn-{:02}", counts, next_turn, read=str, max_new_tokens=max_new_tokens)


def event_names(procedure: Procedure) -> list[str]:
    """Return the names of the conversations about a procedure's events."""
    return [f"{procedure.id}/event{number}" for number in range(len(procedure.events))]


def answers_by_event(request: Request, read: Callable[[str], Labels]) -> dict[str, Answer]:
    """Return the answers from the labels that `read` finds in the conversations about each event."""
    labels = {procedure.id: list(map(read, event_names(procedure))) for procedure in request.procedures}
    return {name: Answer([list(row) for row in zip(*events, strict=True)]) for name, events in labels.items()}

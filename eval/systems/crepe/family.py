"""What a family of prompts is asked for and answers, and how it holds conversations of several turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


@dataclass(frozen=True)
class Request:
    """What a family is asked for.

    Attributes:
        states: the entity changes that prompts give, by procedure; empty where they give none.
        independent: each step is asked about by itself, see `text_families`.
        by_likelihood: the likelier of the answers that there are is taken, and nothing is generated.
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


@dataclass(frozen=True)
class Family:
    """How some procedures are asked about.

    Attributes:
        ask: the answer about each procedure.
        entities: the kinds of entity states that its prompts can have.
        shots: how many demonstrations they show where it is not said.
        by_event: a demonstration shows one of its events.
        by_step: whether they have a form that asks for each step by itself.
    """

    ask: Callable[[Request, Asker], dict[str, Answer]]
    entities: tuple[Entities, ...] = ("none",)
    shots: int = SHOTS
    by_event: bool = False
    by_step: bool = False


def answer_of_events(labels: Iterable[Sequence[int | None]]) -> Answer:
    """The answer from the labels of each event, [event][step]."""
    return Answer([list(row) for row in zip(*labels, strict=True)])


@dataclass(frozen=True)
class Dialogue:
    """A conversation in which the model answers turn after turn.

    Attributes:
        opening: system message and demonstrations.
        turns: what the user says, and the same without what has to be read.
    """

    id: str
    opening: Messages
    turns: Sequence[tuple[str, str]]

    def after(self, replies: Sequence[str], request: Request) -> Conversation:
        """The conversation up to the turn that follows the replies; in the imagined view these are silent."""
        messages, imagined = list(self.opening), list(self.opening)
        for turn, (said, hidden) in enumerate(self.turns[: len(replies) + 1]):
            messages.append(user(said))
            imagined.append(user(hidden))
            if turn < len(replies):
                messages.append(assistant(replies[turn].strip()))
                imagined.append(assistant(""))  # a reply may tell of the steps
        return Conversation(request.dataset, self.id, messages, imagined, group=request.prompt)


def hold(request: Request, asker: Asker, dialogues: Sequence[Dialogue], *, max_new_tokens: int) -> list[list[str]]:
    """The model's replies in each dialogue: one pass a turn, over all dialogues that go on."""
    replies = ask_by_turns(
        asker,
        "turn-{:02}",
        {place: len(dialogue.turns) for place, dialogue in enumerate(dialogues)},
        lambda place, said: dialogues[place].after(said, request),
        read=str,
        max_new_tokens=max_new_tokens,
    )
    return list(replies.values())


def hold_by_event(
    request: Request,
    asker: Asker,
    opening: Messages,
    turns: Callable[[Procedure, str], Sequence[tuple[str, str]]],
    read: Callable[[Sequence[str]], list[int | None]],
    *,
    max_new_tokens: int,
) -> dict[str, Answer]:
    """Hold one dialogue for each event of each procedure.

    Args:
        turns: of a procedure's event, as a dialogue has them.
        read: the label of each step from the replies of a dialogue.
    """
    dialogues = [
        Dialogue(f"{procedure.id}/event{number}", opening, turns(procedure, event))
        for procedure in request.procedures
        for number, event in enumerate(procedure.events)
    ]
    replies = iter(hold(request, asker, dialogues, max_new_tokens=max_new_tokens))
    return {
        procedure.id: answer_of_events(read(next(replies)) for _ in procedure.events)
        for procedure in request.procedures
    }

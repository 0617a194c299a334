"""Families of prompts in plain words, their solved procedures, and what all families share; code is in `code.py`.

A family asks about each event, after each step in its own conversation, in a dialogue, or all at once. As in the
official scripts, the earlier questions and answers of `cot` and `text_change` stay in the prompt. Nothing comes before
the first step, so no prompt can say that it changes something.

`two_questions` asks two questions about each event and step, is it more and is it less likely, with a consistency
check (appendix B.2). The paper asks GPT-3, trained on StrategyQA, in the words of its training rows: facts become the
steps so far. One True is a change that way. Two are inconsistent and count as no change, like two False.

docs/reference/systems/crepe.md has the table of the families.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from d2e_sft.data.chat_template import CUED, Continuation, Messages
from eval.run.task import TaskItem
from eval.systems.asking import Asker, ask_by_turns, assistant, exchanges, filled, system, user, wording
from eval.systems.crepe import parse
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, CrepeProcedure, EntityChange, States
from eval.systems.crepe.parse import CrepeAnswer, EventLabels, Parse

WORDING: Any = wording("crepe/wording")
Entities = Literal["none", "soft", "hard", "gold", "predicted"]
SHOTS = 3  # section 4.1
YES_NO = ("yes", "no")


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

    def is_likely(self, step: int) -> bool:
        """Return whether the event is likely after a number of steps."""
        return self.holds[step] == self.favours

    def label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the event."""
        return _change(self.is_likely(step - 1), self.is_likely(step))

    def state_label(self, step: int) -> int:
        """Return the label of step `step`, counted from 1, for the entity's state."""
        return _change(self.holds[step - 1], self.holds[step])


def _change(before: bool, after: bool) -> int:
    return EQUALLY if before == after else MORE if after else LESS


class Demonstration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    goal: str
    steps: list[str]
    events: list[DemonstrationEvent]

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


@cache
def load_demonstrations() -> tuple[Demonstration, ...]:
    return tuple(map(Demonstration.model_validate, wording("crepe/demonstrations")))


MOST_SHOTS = len(load_demonstrations())


def drawn_demonstrations(count: int, seed: int, *, by_event: bool) -> list[Demonstration]:
    """Draw demonstrations in random order, like appendix A; `by_event` among all events, each with its procedure."""
    bank = list(load_demonstrations())
    if by_event:
        bank = [shown.model_copy(update={"events": [event]}) for shown in bank for event in shown.events]
    return random.Random(f"demonstrations/{seed}").sample(bank, count)


@dataclass(frozen=True)
class Request:
    """What a family is asked; `states` are the entity changes that prompts give, by procedure, or empty.

    `by_likelihood` takes the likelier of yes and no.
    """

    dataset: str
    procedures: Sequence[CrepeProcedure]
    prompt: str
    entities: Entities
    demonstrations: Sequence[Demonstration]
    states: States
    parse: Parse
    by_likelihood: bool = False
    style: Continuation = CUED


@dataclass(frozen=True)
class Family:
    """How some procedures are asked about.

    Attributes:
        ask: Returns the answer about each procedure.
        entities: The kinds of entity states that its prompts can have.
        shots: Number of demonstrations by default.
        by_event: A demonstration shows one of its events.
        style: How its conversations become one text.
    """

    ask: Callable[[Request, Asker], dict[str, CrepeAnswer]]
    entities: tuple[Entities, ...] = ("none",)
    shots: int = SHOTS
    by_event: bool = False
    style: Continuation = CUED


class CrepeTurn(NamedTuple):
    """What the user says, and the same in the imagined view, without the steps; `id` if it is a conversation."""

    shown: str
    hidden: str
    id: str = ""


def converse(
    request: Request,
    asker: Asker,
    opening: Messages,
    turns: Mapping[str, Sequence[CrepeTurn]],
    tokens: int,
    *,
    dialogue: bool = False,
    name: str = "answers",
) -> dict[str, list[str]]:
    """Ask each turn after the opening, in one pass or in dialogues, and return the replies.

    A dialogue takes one pass per turn. Its imagined view has silent replies, because they may tell of the steps.
    """

    def chat(key: str, replies: Sequence[str], turn: CrepeTurn) -> TaskItem:
        messages, imagined = list(opening), list(opening)
        for past, reply in zip(turns[key], replies, strict=False):
            messages += [user(past.shown), assistant(reply.strip())]
            imagined += [user(past.hidden), assistant("")]
        views = [*messages, user(turn.shown)], [*imagined, user(turn.hidden)]
        options = YES_NO if request.by_likelihood else ()
        id_ = key if dialogue else key + turn.id
        return TaskItem(request.dataset, id_, *views, group=request.prompt, options=options)

    options: dict[str, Any] = {"max_new_tokens": tokens, "style": request.style}
    if dialogue:
        counts = {key: len(questions) for key, questions in turns.items()}
        return ask_by_turns(
            asker, "turn-{:02}", counts, lambda key, past: chat(key, past, turns[key][len(past)]), read=str, **options
        )
    chats = [chat(key, (), turn) for key, questions in turns.items() for turn in questions]
    outputs = asker.choose(name, chats, request.style) if request.by_likelihood else asker.ask(name, chats, **options)
    replies = iter(outputs)
    return {key: [next(replies) for _ in questions] for key, questions in turns.items()}


def event_names(procedure: CrepeProcedure) -> list[str]:
    return [f"{procedure.id}/event{number}" for number in range(len(procedure.events))]


def by_event(request: Request, turns: Callable[[CrepeProcedure, str], list[CrepeTurn]]) -> dict[str, list[CrepeTurn]]:
    """Return the turns about each event of each procedure, by the name of their conversation."""
    return {
        name: turns(procedure, event)
        for procedure in request.procedures
        for name, event in zip(event_names(procedure), procedure.events, strict=True)
    }


def answers_by_event(
    request: Request, read: Callable[[Sequence[str], int], EventLabels], replies: Mapping[str, Sequence[str]]
) -> dict[str, CrepeAnswer]:
    """Return the answers from the labels that `read` finds in replies about an event, given the number of steps."""
    labels = {
        procedure.id: [read(replies[name], len(procedure.steps)) for name in event_names(procedure)]
        for procedure in request.procedures
    }
    return {name: CrepeAnswer([list(row) for row in zip(*events, strict=True)]) for name, events in labels.items()}


def ask_texts(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    texts = WORDING[request.prompt]
    opening = [system(texts["system"]), *exchanges(_demonstrated(request))]
    turns = by_event(request, lambda procedure, event: _turns(request, procedure, event))
    tokens = texts["tokens"]
    if request.prompt == "text_at_once":
        tokens *= 1 + max(len(procedure.steps) for procedure in request.procedures)
    dialogue = request.prompt in ("text_change", "chat", "cot")
    replies = converse(request, asker, opening, turns, tokens, dialogue=dialogue)
    answers = answers_by_event(request, lambda texts, steps: _labels(request, texts, steps), replies)
    if request.prompt != "two_questions":
        return answers
    both = {
        procedure.id: [_truths(replies[name]).count((True, True)) for name in event_names(procedure)]
        for procedure in request.procedures
    }
    return {name: replace(answer, inconsistent=sum(both[name])) for name, answer in answers.items()}


def _asked(request: Request, steps: Sequence[str]) -> list[tuple[int, str]]:
    """Return the number of each step that is asked about, and what it may make the event: more or less likely."""
    if request.prompt == "text_at_once":
        return [(len(steps), "")]
    ways = ("more", "less") if request.prompt == "two_questions" else ("",)
    return [(step, way) for step in range(1, len(steps) + 1) for way in ways]


def _turns(request: Request, source: CrepeProcedure | Demonstration, event: str) -> list[CrepeTurn]:
    """Return the questions about an event; those of a demonstration have no follow-ups."""
    solved = isinstance(source, Demonstration)
    changes = source.entity_changes if isinstance(source, Demonstration) else request.states.get(source.id)
    changes = changes if request.entities == "gold" else None
    follow_up = request.prompt == "self_ask"
    noted = source.steps if follow_up or changes is None else list(map(_noted, source.steps, changes))
    fields = {"goal": source.goal, "event": event, "clause": clause(event), "steps": noted}
    turns = []
    for step, way in _asked(request, source.steps):
        now = {"before": " ".join(noted[: step - 1]), "done": " ".join(noted[:step]), "now": noted[step - 1]}
        changed = changes[step - 1] if follow_up and changes and not solved else ()
        shown, hidden = (
            filled(WORDING[request.prompt]["user"], way=way, opens=step == 1, **fields, **view)
            for view in ({"given": changed, **now}, {"hidden": True, "given": (), **dict.fromkeys(now, "(not shown)")})
        )
        name = "" if request.prompt == "text_at_once" else f"/step{step}" + f"/{way}" * bool(way)
        turns.append(CrepeTurn(shown, hidden, name))
    return turns


def _noted(step: str, changes: Sequence[EntityChange]) -> str:
    """Return a step with the states that it changes in brackets."""
    states = [f"{c.entity}: {'' if c.change == LABELS[MORE] else 'not '}{c.attribute}" for c in changes]
    return f"{step} ({'; '.join(states)})" if states else step


def clause(event: str) -> str:
    """Return an event's sentence as part of a question: without its full stop, in lower case at the start."""
    text = event.strip().removesuffix(".")
    word = re.match(r"\w+", text)
    first = word[0] if word else ""
    stays = first == "I" or (len(first) > 1 and first.isupper())
    return text if stays else text[:1].lower() + text[1:]


def _labels(request: Request, replies: Sequence[str], steps: int) -> EventLabels:
    if request.prompt == "text_at_once":
        return parse.changes_of(parse.read_lettered_levels(replies[0], steps), parse.LIKELY)
    if request.prompt in ("cot", "text_change"):
        return list(map(parse.read_change, replies))
    if request.prompt == "two_questions":
        return [parse.change_of_truths(*pair) for pair in _truths(replies)]
    read = parse.read_yes_or_no if request.prompt in ("chat", "yes_no") else parse.read_likely
    return parse.changes_of(list(map(read, replies)))


def _truths(replies: Sequence[str]) -> list[tuple[bool | None, bool | None]]:
    """Return the answers at each step: is the event more likely, and is it less likely?"""
    truths = list(map(parse.read_truth, replies))
    return list(zip(truths[::2], truths[1::2], strict=True))


def _demonstrated(request: Request) -> list[tuple[str, str]]:
    """Return questions and answers about the first event of each demonstration."""
    pairs = []
    for shown in request.demonstrations:
        event, questions = shown.events[0], _asked(request, shown.steps)
        at_once = request.prompt == "text_at_once"
        answers = [
            filled(
                WORDING[request.prompt]["assistant"],
                event=event,
                step=step,
                way=way,
                likely=event.is_likely(step),
                holds=event.holds[step],
                label=LABELS[event.label(step)],
            )
            for step, way in ([(step, "") for step in range(1, len(shown.steps) + 1)] if at_once else questions)
        ]
        answers = ["\n".join(answers)] if at_once else answers
        turns = _turns(request, shown, event.event)
        pairs += [(turn.shown, answer) for turn, answer in zip(turns, answers, strict=True)]
    return pairs

"""Families of prompts in plain words, their solved procedures, and what all families share; code is in `code.py`.

A family asks about each event, after each step in its own conversation, in a dialogue, or all at once. As in the
official scripts, the earlier questions and answers of `cot` and `text_change` stay in the prompt. Nothing comes before
the first step, so no prompt can say that it changes something. With `structure=independent`, the start is asked about
too, and each step of `cot` on its own.

`two_questions` asks two questions about each event and step, is it more and is it less likely, with a consistency
check (appendix B.2). The paper asks GPT-3, trained on StrategyQA, in the words of its training rows: facts become the
steps so far. One True is a change that way. Two are inconsistent and count as no change, like two False.

docs/reference/systems/crepe.md has the table of the families.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from d2e_sft.data.chat_template import CUED, Continuation, Messages
from d2e_sft.data.conversation import prompt_turns
from eval.run.task import TaskItem
from eval.systems.asking import Asker, ask_by_turns, assistant, exchanges, system, user, wording
from eval.systems.crepe import parse
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, CrepeProcedure, EntityChange, States
from eval.systems.crepe.parse import CrepeAnswer, EventLabels, Parse

WORDING: Any = wording("crepe/wording")
Entities = Literal["none", "soft", "hard", "gold", "predicted"]
SHOTS = 3  # section 4.1
YES_NO = ("yes", "no")
_INDEPENDENT_COT_TOKENS = 160
_TWO_QUESTIONS_TOKENS = 256  # as the official script asks for
_QUESTIONS = {"more": MORE, "less": LESS}


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

    With `independent` each step is asked about on its own. `by_likelihood` takes the likelier of yes and no.
    """

    dataset: str
    procedures: Sequence[CrepeProcedure]
    prompt: str
    entities: Entities
    demonstrations: Sequence[Demonstration]
    states: States
    parse: Parse
    independent: bool = False
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
        by_step: The family has a form that asks for each step on its own.
        style: How its conversations become one text.
    """

    ask: Callable[[Request, Asker], dict[str, CrepeAnswer]]
    entities: tuple[Entities, ...] = ("none",)
    shots: int = SHOTS
    by_event: bool = False
    by_step: bool = False
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
        counts = {key: len(asked) for key, asked in turns.items()}
        return ask_by_turns(
            asker, "turn-{:02}", counts, lambda key, said: chat(key, said, turns[key][len(said)]), read=str, **options
        )
    chats = [chat(key, (), turn) for key, asked in turns.items() for turn in asked]
    outputs = asker.choose(name, chats, request.style) if request.by_likelihood else asker.ask(name, chats, **options)
    replies = iter(outputs)
    return {key: [next(replies) for _ in asked] for key, asked in turns.items()}


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
    opening = [system(_texts(request)["system"]), *exchanges(_demonstrated(request))]
    turns = by_event(request, lambda procedure, event: _turns(request, procedure, event))
    tokens = _FORMS[request.prompt].tokens
    if request.prompt == "text_at_once":
        tokens *= 1 + max(len(procedure.steps) for procedure in request.procedures)
    if request.prompt == "cot" and request.independent:
        tokens = _INDEPENDENT_COT_TOKENS
    dialogue = request.prompt in ("text_change", "chat") or (request.prompt == "cot" and not request.independent)
    replies = converse(request, asker, opening, turns, tokens, dialogue=dialogue)
    return answers_by_event(request, lambda said, steps: _labels(request, said, steps), replies)


def _texts(request: Request) -> Any:
    independent = WORDING["independent"].get(request.prompt) if request.independent else None
    return independent or WORDING[request.prompt]


def _first(request: Request) -> int:
    """Return the first step that is asked about; 0 is before the first one."""
    return 0 if request.independent and request.prompt != "cot" else 1


def _turns(request: Request, about: CrepeProcedure | Demonstration, event: str) -> list[CrepeTurn]:
    """Return the questions about an event; those of a demonstration have no follow-ups."""
    texts, steps, solved = _texts(request), about.steps, isinstance(about, Demonstration)
    if request.prompt == "chat":
        start = texts["start"].format(goal=about.goal, event=event)
        turns = [CrepeTurn(texts["turn"].format(step=step), texts["hidden_turn"]) for step in steps]
        if request.independent:
            return [CrepeTurn(*["\n".join([start, texts["before"]])] * 2), *turns]
        return [CrepeTurn(f"{start}\n{turns[0].shown}", f"{start}\n{turns[0].hidden}"), *turns[1:]]
    fields = {"goal": about.goal, "event": event, "clause": clause(event)}
    if request.prompt == "text_at_once":
        views = (steps, [WORDING["not_shown"]] * len(steps))
        listed = ["\n".join(f"{n}. {step}" for n, step in enumerate(view, start=1)) for view in views]
        return [CrepeTurn(*(texts["user"].format(steps=text, **fields) for text in listed))]
    changes = about.entity_changes if isinstance(about, Demonstration) else request.states.get(about.id)
    changes = changes if request.entities == "gold" else None
    follow_up = request.prompt == "self_ask" and not request.independent
    hidden = texts["user"].format(**fields, **dict.fromkeys(("steps", "before", "step"), WORDING["not_shown"]))
    turns = []
    for step in range(_first(request), len(steps) + 1):
        lines = [texts["user"].format(**fields, **_so_far(request, steps, step, None if follow_up else changes))]
        if follow_up and changes is not None and not solved:
            lines += [
                WORDING["self_ask"]["given"].format(**vars(change), answer=_yes_or_no(change.change == LABELS[MORE]))
                for change in changes[step - 1]
            ]
        turns.append(CrepeTurn("\n".join(lines), hidden, f"/step{step}"))
    return turns


def _so_far(
    request: Request, steps: Sequence[str], step: int, changes: Sequence[Sequence[EntityChange]] | None
) -> dict[str, str]:
    """Return the first steps: all of them, those before the last of them, and the last."""
    noted = list(steps)
    for place, listed in enumerate(changes or ()):
        states = [f"{c.entity}: {'' if c.change == LABELS[MORE] else 'not '}{c.attribute}" for c in listed]
        noted[place] += f" ({'; '.join(states)})" if states else ""
    before = " ".join(noted[: max(step - 1, 0)]) or WORDING["start"]
    if request.prompt == "yes_no":  # as in the official script for T5
        before = " ".join([WORDING["start"], *steps[: step - 1]])
    return {
        "steps": " ".join(noted[:step]) or WORDING["nothing_done"],
        "before": before,
        "step": steps[step - 1] if step else "",
    }


def clause(event: str) -> str:
    """Return an event's sentence as part of a question: without its full stop, in lower case at the start."""
    text = event.strip().removesuffix(".")
    found = re.match(r"\w+", text)
    first = found[0] if found else ""
    stays = first == "I" or (len(first) > 1 and first.isupper())
    return text if stays else text[:1].lower() + text[1:]


def _labels(request: Request, replies: Sequence[str], steps: int) -> EventLabels:
    if request.prompt == "text_at_once":
        return parse.changes_from_first(parse.read_lettered_levels(replies[0], steps), parse.LIKELY)
    if request.prompt in ("cot", "text_change"):
        return list(map(parse.read_change, replies))
    read = parse.read_level if request.independent else parse.read_likely
    levels = list(map(parse.read_yes_or_no if request.prompt in ("chat", "yes_no") else read, replies))
    return parse.changes_of(levels) if request.independent else parse.changes_from_first(levels)


def _demonstrated(request: Request) -> list[tuple[str, str]]:
    pairs = []
    for shown in request.demonstrations:
        turns = _turns(request, shown, shown.events[0].event)
        steps = range(_first(request), len(shown.steps) + 1)
        answers = [_FORMS[request.prompt].solve(request, shown.events[0], step) for step in steps]
        if request.prompt == "text_at_once":
            answers = ["\n".join(answers)]
        pairs += [(turn.shown, answer) for turn, answer in zip(turns, answers, strict=True)]
    return pairs


def _level(request: Request, event: DemonstrationEvent, step: int) -> str:
    return "very " * request.independent + ("likely" if event.is_likely(step) else "unlikely")


def _follow_ups(request: Request, event: DemonstrationEvent, step: int) -> str:
    states = {"state_holds": _yes_or_no(event.holds[step]), "event_holds": _yes_or_no(event.is_likely(step))}
    level = _level(request, event, step)
    return str(_texts(request)["assistant"].format(ask=event.ask, link=event.link, level=level, **states))


def _chain(_: Request, event: DemonstrationEvent, step: int) -> str:
    state = event.if_true if event.holds[step] else event.if_false
    fields = {"because": event.because, "state": state, "label": LABELS[event.label(step)]}
    return str(WORDING["cot"]["assistant"].format(**fields))


def _yes_or_no(value: bool) -> str:
    return "Yes." if value else "No."


class _Form(NamedTuple):
    """Limit of a reply, and the answer of a demonstration's event after a step."""

    tokens: int
    solve: Callable[[Request, DemonstrationEvent, int], str]


_FORMS = {
    "text": _Form(12, _level),
    "text_change": _Form(12, lambda _, event, step: f'"{LABELS[event.label(step)]}"'),
    "text_at_once": _Form(
        16, lambda _, event, step: f"Step {step}: {parse.LETTERED[0 if event.is_likely(step) else 3]}"
    ),
    "cot": _Form(256, _chain),
    "self_ask": _Form(200, _follow_ups),
    "yes_no": _Form(12, lambda _, event, step: YES_NO[not event.is_likely(step)]),
    "chat": _Form(12, lambda _, event, step: _yes_or_no(event.is_likely(step))),
}


def ask_two_questions(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    texts = WORDING["two_questions"]

    def turns(steps: Sequence[str], event: str) -> list[CrepeTurn]:
        """Return the questions in the words of a training row; the imagined view lacks the context."""

        def words(way: str, context: str) -> str:
            row = prompt_turns(texts["user"], "", texts["question"].format(way=way, clause=clause(event)))
            return str(row.messages(context)[0]["content"])

        return [
            CrepeTurn(words(way, " ".join(steps[:step])), words(way, ""), f"/step{step}/{way}")
            for step in range(1, len(steps) + 1)
            for way in _QUESTIONS
        ]

    def answers(steps: Sequence[str], event: DemonstrationEvent) -> list[str]:
        return [
            texts["assistant"].format(
                ask=event.ask,
                state_holds=YES_NO[not event.holds[step]],
                link=event.link,
                event_holds=YES_NO[not event.is_likely(step)],
                answer=event.label(step) == label,
            )
            for step in range(1, len(steps) + 1)
            for label in _QUESTIONS.values()
        ]

    opening = [system(texts["system"])]
    for shown in request.demonstrations:
        asked = (turn.shown for turn in turns(shown.steps, shown.events[0].event))
        opening += exchanges(zip(asked, answers(shown.steps, shown.events[0]), strict=True))
    chats = by_event(request, lambda procedure, event: turns(procedure.steps, event))
    replies = converse(request, asker, opening, chats, _TWO_QUESTIONS_TOKENS)

    def pairs(said: Sequence[str]) -> list[tuple[bool | None, bool | None]]:
        truths = list(map(parse.read_truth, said))
        return list(zip(truths[::2], truths[1::2], strict=True))

    found = answers_by_event(request, lambda said, _: [_of_both(*pair) for pair in pairs(said)], replies)
    return {
        procedure.id: replace(
            found[procedure.id],
            inconsistent=sum(pairs(replies[name]).count((True, True)) for name in event_names(procedure)),
        )
        for procedure in request.procedures
    }


def _of_both(more: bool | None, less: bool | None) -> int | None:
    """Return the label of two answers; None if one could not be read."""
    if more is None or less is None:
        return None
    return EQUALLY if more == less else MORE if more else LESS

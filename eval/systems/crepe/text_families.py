"""Prompts in plain words that ask for each event after each step anew, and how such prompts tell a step.

`text` (Figure 2) and `self_ask` (Figure 4) ask how likely the event is, `yes_no` (appendix B.4) whether it is okay
that it happens. Each answer is compared with the one before. As in the official scripts nothing stands before the
first one, so no prompt can say that the first step changes something.

Of `structure=independent` are the forms that can: text and self-ask ask for one of four levels, also before the first
step, and chain of thought asks for the change after each step by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, user, wording
from eval.systems.crepe.demonstrations import Demonstration, DemonstrationEvent
from eval.systems.crepe.family import Request, answer_of_events
from eval.systems.crepe.gold import LABELS, MORE, EntityChange, Procedure
from eval.systems.crepe.parse import (
    Answer,
    changes_from_first,
    changes_of,
    read_change,
    read_level,
    read_likely,
    read_yes_or_no,
)

WORDING: Any = wording("crepe/wording")
YES_NO = ("yes", "no")
_TOKENS = {"text": 12, "cot": 160, "self_ask": 200, "yes_no": 12}
_Changes = Sequence[Sequence[EntityChange]]


def ask_texts(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask everything in one pass, and read a label for each event and step."""
    opening = [system(_texts(request)["system"]), *_demonstrated(request)]
    conversations = [
        _conversation(request, opening, procedure, number, step)
        for procedure in request.procedures
        for number in range(len(procedure.events))
        for step in _steps(request, len(procedure.steps))
    ]
    if request.by_likelihood:
        outputs = asker.choose("answers", conversations)
    else:
        outputs = asker.ask("answers", conversations, max_new_tokens=_TOKENS[request.prompt])
    said = {chat.id: output for chat, output in zip(conversations, outputs, strict=True)}
    return {procedure.id: _answer(request, procedure, said) for procedure in request.procedures}


def _texts(request: Request) -> Any:
    return WORDING["independent"][request.prompt] if request.independent else WORDING[request.prompt]


def _steps(request: Request, count: int) -> range:
    """The steps asked about; 0 is before the first step."""
    return range(0 if request.independent and request.prompt != "cot" else 1, count + 1)


def _name(procedure: Procedure, number: int, step: int) -> str:
    return f"{procedure.id}/event{number}/step{step}"


def _conversation(request: Request, opening: Messages, procedure: Procedure, number: int, step: int) -> Conversation:
    event, changes = procedure.events[number], request.states.get(procedure.id)
    question = _question(request, procedure.goal, told(request, procedure.steps, step, changes), event)
    if request.prompt == "self_ask" and not request.independent and changes is not None:
        question = "\n".join([question, *_followed_up(changes[step - 1])])
    return Conversation(
        request.dataset,
        _name(procedure, number, step),
        [*opening, user(question)],
        [*opening, user(_question(request, procedure.goal, hidden(), event))],
        group=request.prompt,
        options=YES_NO if request.by_likelihood else (),
    )


def _question(request: Request, goal: str, steps: dict[str, str], event: str) -> str:
    text: str = _texts(request)["user"].format(goal=goal, event=event, clause=clause(event), **steps)
    return text


def told(request: Request, steps: Sequence[str], step: int, changes: _Changes | None) -> dict[str, str]:
    """What a prompt tells of the first steps: all of them, those before the last of them, and the last."""
    noted = None if request.prompt == "self_ask" and not request.independent else changes
    before = _so_far(steps, max(step - 1, 0), noted, WORDING["start"])
    if request.prompt == "yes_no":  # as the official script for T5 has it
        before = " ".join([WORDING["start"], *steps[: step - 1]])
    return {
        "steps": _so_far(steps, step, noted, WORDING["nothing_done"]),
        "before": before,
        "step": steps[step - 1] if step else "",
    }


def hidden() -> dict[str, str]:
    """What stands in these places in the imagined view."""
    return dict.fromkeys(("steps", "before", "step"), WORDING["not_shown"])


def _so_far(steps: Sequence[str], done: int, changes: _Changes | None, nothing: str) -> str:
    """The first steps, with the entity changes after each where they are given."""
    if done == 0:
        return nothing
    return " ".join(
        step if changes is None or not changes[place] else f"{step} ({'; '.join(map(_said, changes[place]))})"
        for place, step in enumerate(steps[:done])
    )


def clause(event: str) -> str:
    """An event's sentence as it stands inside a question: without its full stop, the first letter a small one."""
    text = event.strip().removesuffix(".")
    found = re.match(r"\w+", text)
    first = found[0] if found else ""
    stays = first == "I" or (len(first) > 1 and first.isupper())
    return text if stays else text[:1].lower() + text[1:]


def _said(change: EntityChange) -> str:
    return f"{change.entity}: {'' if change.change == LABELS[MORE] else 'not '}{change.attribute}"


def _followed_up(changes: Sequence[EntityChange]) -> Iterator[str]:
    """Given entity changes as follow-up questions that are answered already."""
    for change in changes:
        yield WORDING["self_ask"]["given"].format(
            entity=change.entity, attribute=change.attribute, answer=_yes_or_no(change.change == LABELS[MORE])
        )


def _answer(request: Request, procedure: Procedure, said: dict[str, str]) -> Answer:
    columns = []
    for number in range(len(procedure.events)):
        replies = [said[_name(procedure, number, step)] for step in _steps(request, len(procedure.steps))]
        columns.append(_read(request, replies))
    return answer_of_events(columns)


def _read(request: Request, replies: Sequence[str]) -> list[int | None]:
    if request.prompt == "cot":
        return [read_change(reply) for reply in replies]
    if request.independent:
        return changes_of([read_level(reply) for reply in replies])
    read = read_yes_or_no if request.prompt == "yes_no" else read_likely
    return changes_from_first([read(reply) for reply in replies])


def _demonstrated(request: Request) -> Messages:
    """Each demonstration's event after each step, as turns."""
    pairs = []
    for shown in request.demonstrations:
        event = shown.events[0]
        changes = shown.entity_changes if request.entities == "gold" else None
        for step in _steps(request, len(shown.steps)):
            question = _question(request, shown.goal, told(request, shown.steps, step, changes), event.event)
            pairs.append((question, _SOLVED[request.prompt](request, event, step)))
    return exchanges(pairs)


def solved_in_words(request: Request, shown: Demonstration, step: int) -> str:
    """The chain of thought about a demonstration's event."""
    return _reasoning(request, shown.events[0], step)


def _level(request: Request, event: DemonstrationEvent, step: int) -> str:
    likely = event.is_likely(step)
    if request.independent:
        return "very likely" if likely else "very unlikely"
    return "likely" if likely else "unlikely"


def _reasoning(request: Request, event: DemonstrationEvent, step: int) -> str:
    text: str = WORDING["cot"]["assistant"].format(
        because=event.because, state=event.state(step), label=LABELS[event.label(step)]
    )
    return text


def _follow_ups(request: Request, event: DemonstrationEvent, step: int) -> str:
    text: str = _texts(request)["assistant"].format(
        ask=event.ask,
        state_holds=_yes_or_no(event.holds[step]),
        link=event.link,
        event_holds=_yes_or_no(event.is_likely(step)),
        level=_level(request, event, step),
    )
    return text


def _okay(request: Request, event: DemonstrationEvent, step: int) -> str:
    return YES_NO[not event.is_likely(step)]


def _yes_or_no(value: bool) -> str:
    return "Yes." if value else "No."


_SOLVED: dict[str, Callable[[Request, DemonstrationEvent, int], str]] = {
    "text": _level,
    "cot": _reasoning,
    "self_ask": _follow_ups,
    "yes_no": _okay,
}

"""Prompts in plain words: text, chain of thought and self-ask (Figures 2 and 4), and chat (appendix B.3).

The first three ask for each event after each step anew. Plain text and self-ask ask how likely the event is, before
the first step and after each, and compare each likelihood with the one before. Chain of thought asks for the change
itself. In a chat the steps are told one by one, and before the first and after each the model says yes or no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, user, wording
from eval.systems.crepe.demonstrations import Demonstration, DemonstrationEvent
from eval.systems.crepe.family import Request, answer_of_events, hold_by_event
from eval.systems.crepe.gold import LABELS, MORE, EntityChange, Procedure
from eval.systems.crepe.parse import Answer, changes_of, read_change, read_level, read_yes_or_no

_WORDING: Any = wording("crepe/wording")
_TOKENS = {"text": 12, "cot": 160, "self_ask": 200}
_CHAT_TOKENS = 12
_Changes = Sequence[Sequence[EntityChange]]


def ask_texts(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask everything in one pass, and read a label for each event and step."""
    opening = [system(_WORDING[request.prompt]["system"]), *_demonstrated(request)]
    conversations = [
        _conversation(request, opening, procedure, number, step)
        for procedure in request.procedures
        for number in range(len(procedure.events))
        for step in range(_first_step(request), len(procedure.steps) + 1)
    ]
    outputs = asker.ask("answers", conversations, max_new_tokens=_TOKENS[request.prompt])
    said = {chat.id: output for chat, output in zip(conversations, outputs, strict=True)}
    return {procedure.id: _answer(request, procedure, said) for procedure in request.procedures}


def _first_step(request: Request) -> int:
    """0 is before the first step: a likelihood needs one to compare with."""
    return 1 if request.prompt == "cot" else 0


def _name(procedure: Procedure, number: int, step: int) -> str:
    return f"{procedure.id}/event{number}/step{step}"


def _conversation(request: Request, opening: Messages, procedure: Procedure, number: int, step: int) -> Conversation:
    changes = request.states.get(procedure.id)
    shown = _so_far(procedure.steps, step, changes)
    question, hidden = (
        _question(request, procedure.goal, steps, procedure.events[number]) for steps in (shown, _WORDING["not_shown"])
    )
    return Conversation(
        request.dataset,
        _name(procedure, number, step),
        [*opening, user(question)],
        [*opening, user(hidden)],
        group=request.prompt,
    )


def _question(request: Request, goal: str, steps: str, event: str) -> str:
    text: str = _WORDING[request.prompt]["user"].format(goal=goal, steps=steps, event=event)
    return text


def _so_far(steps: Sequence[str], done: int, changes: _Changes | None) -> str:
    """The first steps, with the entity changes after each where they are given."""
    if done == 0:
        text: str = _WORDING["nothing_done"]
        return text
    return " ".join(
        step if changes is None or not changes[place] else f"{step} ({'; '.join(map(_said, changes[place]))})"
        for place, step in enumerate(steps[:done])
    )


def _said(change: EntityChange) -> str:
    return f"{change.entity}: {'' if change.change == LABELS[MORE] else 'not '}{change.attribute}"


def _answer(request: Request, procedure: Procedure, said: dict[str, str]) -> Answer:
    columns = []
    for number in range(len(procedure.events)):
        steps = range(_first_step(request), len(procedure.steps) + 1)
        replies = [said[_name(procedure, number, step)] for step in steps]
        columns.append(
            [read_change(reply) for reply in replies]
            if request.prompt == "cot"
            else changes_of([read_level(reply) for reply in replies])
        )
    return answer_of_events(columns)


def _demonstrated(request: Request) -> Messages:
    """Each demonstration's first event after each step, as turns."""
    pairs = []
    for shown in request.demonstrations:
        event = shown.events[0]
        changes = shown.entity_changes if request.entities == "gold" else None
        for step in range(_first_step(request), len(shown.steps) + 1):
            question = _question(request, shown.goal, _so_far(shown.steps, step, changes), event.event)
            pairs.append((question, _SOLVED[request.prompt](event, step)))
    return exchanges(pairs)


def _level(event: DemonstrationEvent, step: int) -> str:
    return "very likely" if event.is_likely(step) else "very unlikely"


def _reasoning(event: DemonstrationEvent, step: int) -> str:
    text: str = _WORDING["cot"]["assistant"].format(
        because=event.because, state=event.state(step), label=LABELS[event.label(step)]
    )
    return text


def _follow_ups(event: DemonstrationEvent, step: int) -> str:
    text: str = _WORDING["self_ask"]["assistant"].format(
        ask=event.ask,
        state_holds=_yes_or_no(event.holds[step]),
        link=event.link,
        event_holds=_yes_or_no(event.is_likely(step)),
        level=_level(event, step),
    )
    return text


def _yes_or_no(value: bool) -> str:
    return "Yes." if value else "No."


_SOLVED: dict[str, Callable[[DemonstrationEvent, int], str]] = {
    "text": _level,
    "cot": _reasoning,
    "self_ask": _follow_ups,
}


def ask_chat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event; it begins before the first step, to have something to compare with."""
    opening = [system(_WORDING["chat"]["system"]), *_demonstrated_chats(request)]
    return hold_by_event(
        request,
        asker,
        opening,
        _chat_turns,
        lambda replies: changes_of(list(map(read_yes_or_no, replies))),
        max_new_tokens=_CHAT_TOKENS,
    )


def _chat_turns(procedure: Procedure | Demonstration, event: str) -> list[tuple[str, str]]:
    texts = _WORDING["chat"]
    start = texts["start"].format(goal=procedure.goal, event=event)
    return [(start, start), *((texts["turn"].format(step=step), texts["hidden_turn"]) for step in procedure.steps)]


def _demonstrated_chats(request: Request) -> Messages:
    return exchanges(
        (question, _yes_or_no(shown.events[0].is_likely(step)))
        for shown in request.demonstrations
        for step, (question, _) in enumerate(_chat_turns(shown, shown.events[0].event))
    )

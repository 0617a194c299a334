"""Prompts in plain words that are conversations about one event, a step a turn.

Chain of thought (Figure 4) and `text_change` ask what each step does to the event. As in the official scripts the
earlier questions and answers of the event stay in the prompt, and demonstrations are such conversations, too. In a
chat (appendix B.3) the steps are told one by one, and the model says yes or no after each; of
`structure=independent` also before the first, to have something to compare with.
"""

from __future__ import annotations

from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system
from eval.systems.crepe.demonstrations import Demonstration
from eval.systems.crepe.family import Request, hold_by_event
from eval.systems.crepe.gold import LABELS, Procedure
from eval.systems.crepe.parse import Answer, changes_from_first, changes_of, read_change, read_yes_or_no
from eval.systems.crepe.text_families import WORDING, ask_texts, clause, hidden, solved_in_words, told

_TOKENS = {"text_change": 12, "cot": 256}
_CHAT_TOKENS = 12


def ask_changes(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask what each step does to each event, after the answers about the steps before."""
    if request.independent:
        return ask_texts(request, asker)
    texts = WORDING[request.prompt]
    opening = [system(texts["system"]), *_demonstrated(request)]

    def turns(procedure: Procedure, event: str) -> list[tuple[str, str]]:
        changes = request.states.get(procedure.id)
        return [
            (
                _question(request, procedure, event, told(request, procedure.steps, step, changes)),
                _question(request, procedure, event, hidden()),
            )
            for step in range(1, len(procedure.steps) + 1)
        ]

    return hold_by_event(
        request,
        asker,
        opening,
        turns,
        lambda replies: list(map(read_change, replies)),
        max_new_tokens=_TOKENS[request.prompt],
    )


def _question(request: Request, procedure: Procedure | Demonstration, event: str, steps: dict[str, str]) -> str:
    text: str = WORDING[request.prompt]["user"].format(goal=procedure.goal, event=event, clause=clause(event), **steps)
    return text


def _demonstrated(request: Request) -> Messages:
    return exchanges(
        (
            _question(request, shown, shown.events[0].event, told(request, shown.steps, step, _given(request, shown))),
            _solved(request, shown, step),
        )
        for shown in request.demonstrations
        for step in range(1, len(shown.steps) + 1)
    )


def _given(request: Request, shown: Demonstration) -> Any:
    return shown.entity_changes if request.entities == "gold" else None


def _solved(request: Request, shown: Demonstration, step: int) -> str:
    if request.prompt == "cot":
        return solved_in_words(request, shown, step)
    return f'"{LABELS[shown.events[0].label(step)]}"'


def ask_chat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event."""
    opening = [system(WORDING["chat"]["system"]), *_demonstrated_chats(request)]
    read = changes_of if request.independent else changes_from_first
    return hold_by_event(
        request,
        asker,
        opening,
        lambda procedure, event: _chat_turns(request, procedure, event),
        lambda replies: read(list(map(read_yes_or_no, replies))),
        max_new_tokens=_CHAT_TOKENS,
    )


def _chat_turns(request: Request, procedure: Procedure | Demonstration, event: str) -> list[tuple[str, str]]:
    texts = WORDING["chat"]
    told_at_start = texts["start"].format(goal=procedure.goal, event=event)
    steps = [(texts["turn"].format(step=step), texts["hidden_turn"]) for step in procedure.steps]
    if request.independent:
        start = "\n".join([told_at_start, texts["before"]])
        return [(start, start), *steps]
    first = ["\n".join([told_at_start, turn]) for turn in steps[0]]
    return [(first[0], first[1]), *steps[1:]]


def _demonstrated_chats(request: Request) -> Messages:
    pairs = []
    for shown in request.demonstrations:
        turns = _chat_turns(request, shown, shown.events[0].event)
        first = 0 if request.independent else 1
        for step, (question, _) in enumerate(turns, start=first):
            pairs.append((question, "Yes." if shown.events[0].is_likely(step) else "No."))
    return exchanges(pairs)

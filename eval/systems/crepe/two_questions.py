"""Two questions about each event and step, is it more and is it less likely, with a consistency check (appendix B.2).

The paper asks GPT-3, trained on StrategyQA, in the words of its training rows: facts become the steps so far. One
True is a change that way. Two are inconsistent and count as no change, like two False.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from d2e_sft.data.conversation import prompt_turns
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, wording
from eval.systems.crepe import parse
from eval.systems.crepe.family import DemonstrationEvent, Request, event_names
from eval.systems.crepe.gold import EQUALLY, LESS, MORE
from eval.systems.crepe.parse import Answer
from eval.systems.crepe.text_families import clause

_WORDING: Any = wording("crepe/wording")["two_questions"]
_TOKENS = 256  # as the official script asks for
_WAYS = {"more": MORE, "less": LESS}


def ask_two_questions(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask both questions about each event and step, and compare the answers."""
    shown = (pair for one in request.demonstrations for pair in _solved(one.steps, one.events[0]))
    opening = [system(_WORDING["system"]), *exchanges(shown)]
    chats = [
        request.conversation(f"{name}/step{step}/{way}", opening, (question, _question([], event, way)))
        for procedure in request.procedures
        for name, event in zip(event_names(procedure), procedure.events, strict=True)
        for step in range(1, len(procedure.steps) + 1)
        for way in _WAYS
        for question in [_question(procedure.steps[:step], event, way)]
    ]
    outputs = asker.ask("answers", chats, max_new_tokens=_TOKENS, style=request.style)
    replies = map(parse.read_truth, outputs)
    answers = {}
    for procedure in request.procedures:
        pairs = [[(next(replies), next(replies)) for _ in procedure.steps] for _ in procedure.events]
        labels = [list(row) for row in zip(*([_label(*pair) for pair in row] for row in pairs), strict=True)]
        answers[procedure.id] = Answer(labels, inconsistent=sum(row.count((True, True)) for row in pairs))
    return answers


def _question(steps: Sequence[str], event: str, way: str) -> str:
    """Return the question in the words of a training row; without steps it lacks the context."""
    asked = _WORDING["question"].format(way=way, clause=clause(event))
    return prompt_turns(_WORDING["user"], "", asked).messages(" ".join(steps))[0]["content"]


def _solved(steps: Sequence[str], event: DemonstrationEvent) -> Iterator[tuple[str, str]]:
    """Yield both questions about each step of a demonstration with their answers."""
    for step, (way, label) in product(range(1, len(steps) + 1), _WAYS.items()):
        answer = _WORDING["assistant"].format(
            ask=event.ask,
            state_holds=_yes_or_no(event.holds[step]),
            link=event.link,
            event_holds=_yes_or_no(event.is_likely(step)),
            answer=event.label(step) == label,
        )
        yield _question(steps[:step], event.event, way), answer


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _label(more: bool | None, less: bool | None) -> int | None:
    """Return the label of two answers; None if one could not be read."""
    if more is None or less is None:
        return None
    return EQUALLY if more == less else MORE if more else LESS

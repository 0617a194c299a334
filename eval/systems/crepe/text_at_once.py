"""All steps of a procedure at once, in plain words (appendix B.2): one reply says how likely an event is at each.

The reply has a line for each step with one of four levels, `Step 2: (D) unlikely`; each level is compared with the
one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, user
from eval.systems.crepe.family import Request, answer_of_events
from eval.systems.crepe.parse import LETTERED, LIKELY, Answer, changes_from_first, read_lettered_levels
from eval.systems.crepe.text_families import WORDING, clause

_TOKENS_A_STEP, _SPARE = 16, 16


def ask_at_once(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask about each event once, all in one pass."""
    opening = [system(WORDING["text_at_once"]["system"]), *_demonstrated(request)]
    conversations, longest = [], 0
    for procedure in request.procedures:
        longest = max(longest, len(procedure.steps))
        unseen = [WORDING["not_shown"]] * len(procedure.steps)
        for number, event in enumerate(procedure.events):
            asked, imagined = (_question(procedure.goal, steps, event) for steps in (procedure.steps, unseen))
            name = f"{procedure.id}/event{number}"
            views = [*opening, user(asked)], [*opening, user(imagined)]
            conversations.append(Conversation(request.dataset, name, *views, request.prompt))
    limit = _SPARE + _TOKENS_A_STEP * longest
    replies = iter(asker.ask("answers", conversations, max_new_tokens=limit))
    return {
        procedure.id: answer_of_events(
            changes_from_first(read_lettered_levels(next(replies), len(procedure.steps)), LIKELY)
            for _ in procedure.events
        )
        for procedure in request.procedures
    }


def _question(goal: str, steps: Sequence[str], event: str) -> str:
    texts: Any = WORDING["text_at_once"]
    lines = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    text: str = texts["user"].format(goal=goal, steps=lines, clause=clause(event))
    return text


def _demonstrated(request: Request) -> Messages:
    pairs = []
    for shown in request.demonstrations:
        event = shown.events[0]
        levels = [LETTERED[0 if event.is_likely(step) else 3] for step in range(1, len(shown.steps) + 1)]
        reply = "\n".join(f"Step {step}: {level}" for step, level in enumerate(levels, start=1))
        pairs.append((_question(shown.goal, shown.steps, event.event), reply))
    return exchanges(pairs)

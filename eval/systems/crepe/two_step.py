"""The two-step code prompt (appendix B.1): first the entity state that decides about each event, then the changes.

The model writes, in each step's function, an event's precondition as entity and attribute; of these the most frequent
one is the event's. The states of all events, the entity state bank, then open the class: the model deduces each of
them in every step function before it sets the events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, wording
from eval.systems.crepe import code_style as code
from eval.systems.crepe.code_families import TOKENS, ask_for_code
from eval.systems.crepe.code_style import INDENT, CodeStyle, hidden_steps
from eval.systems.crepe.demonstrations import Demonstration, DemonstrationEvent
from eval.systems.crepe.family import Request, event_names
from eval.systems.crepe.parse import Answer

State = tuple[str, str]  # entity, attribute
_WORDING: Any = wording("crepe/wording")["code_two_step"]
_STYLE = CodeStyle()
_PRECONDITION = re.compile(r"""precondition\s*=\s*\\?\s*\(\s*(["'])(.+?)\1\s*,\s*(["'])(.+?)\3\s*\)""")


def ask_two_steps(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the preconditions of all events, then for the step functions of each procedure."""
    banks = _ask_banks(request, asker)
    opening = [system(_WORDING["changes"]), *exchanges(map(_solved_changes, request.demonstrations))]
    chats = []
    for one in request.procedures:
        shown = _opened(one.goal, one.steps, one.events, banks[one.id])
        hidden = _opened(one.goal, hidden_steps(one), one.events, [])
        chats.append(request.conversation(one.id, opening, (shown, hidden)))
    return ask_for_code(request, asker, chats)


def _ask_banks(request: Request, asker: Asker) -> dict[str, list[State | None]]:
    """Return by procedure the state that decides about each event; None if no reply names one."""
    pairs = [(shown, event) for shown in request.demonstrations for event in shown.events[:1]]
    opening = [system(_WORDING["preconditions"]), *exchanges(_solved_precondition(*pair) for pair in pairs)]
    chats = []
    for one in request.procedures:
        for name, event in zip(event_names(one), one.events, strict=True):
            views = [_asked_precondition(one.goal, steps, event) for steps in (one.steps, hidden_steps(one))]
            chats.append(request.conversation(name, opening, (views[0], views[1])))
    replies = iter(asker.ask("preconditions", chats, max_new_tokens=TOKENS))
    return {one.id: [most_frequent(next(replies)) for _ in one.events] for one in request.procedures}


def most_frequent(reply: str) -> State | None:
    """Return the most frequent precondition in a reply, ignoring letter case; of several the first."""
    found = [(match[2].strip(), match[4].strip()) for match in _PRECONDITION.finditer(reply)]
    counts = Counter((entity.casefold(), attribute.casefold()) for entity, attribute in found)
    best = max(counts.values(), default=0)
    alike = (state for state in found if counts[state[0].casefold(), state[1].casefold()] == best)
    return next(alike, None)


def _asked_precondition(goal: str, steps: Sequence[str], event: str) -> str:
    comments = [f"{INDENT}# {step}" for step in ("Start.", *steps)]
    return "\n".join([f"class {code.title(goal)}:", *comments, code.step_header(_STYLE, steps[0]), _event(event)])


def _event(event: str) -> str:
    return f'{INDENT * 2}event = "{event}"'


def _solved_precondition(shown: Demonstration, event: DemonstrationEvent) -> tuple[str, str]:
    state = f'{INDENT * 2}event.precondition = ("{event.entity}", "{event.attribute}")'
    lines = [state]
    for step in shown.steps[1:]:
        lines += [code.step_header(_STYLE, step), _event(event.event), state]
    return _asked_precondition(shown.goal, shown.steps, event.event), "\n".join(lines)


def _opened(goal: str, steps: Sequence[str], events: Sequence[str], bank: Sequence[State | None]) -> str:
    """Return the class down to the objects of the bank, each with its attributes."""
    attributes: dict[str, dict[str, None]] = {}
    for entity, attribute in filter(None, bank):
        attributes.setdefault(entity, {})[attribute] = None
    objects = [f"{code.object_line(entity)}  # {', '.join(names)}" for entity, names in attributes.items()]
    return "\n".join([code.header(_STYLE, goal, steps, events), *objects])


def _solved_changes(shown: Demonstration) -> tuple[str, str]:
    lines = []
    for step, text in enumerate(shown.steps, start=1):
        lines.append(code.step_header(_STYLE, text))
        states: Mapping[State, bool] = {(event.entity, event.attribute): event.holds[step] for event in shown.events}
        lines += [
            f"{INDENT * 2}self.{code.snake(entity)}.{code.snake(name)} = {h}" for (entity, name), h in states.items()
        ]
        lines += [code.event_line(_STYLE, n, event.label(step), event.event) for n, event in enumerate(shown.events)]
    bank = [(event.entity, event.attribute) for event in shown.events]
    return _opened(shown.goal, shown.steps, [event.event for event in shown.events], bank), "\n".join(lines)

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

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, user, wording
from eval.systems.crepe.code_families import (
    INDENT,
    TOKENS,
    CodeStyle,
    event_line,
    header,
    hidden_steps,
    object_line,
    snake,
    step_header,
    title,
)
from eval.systems.crepe.demonstrations import Demonstration, DemonstrationEvent
from eval.systems.crepe.family import Request
from eval.systems.crepe.gold import Procedure
from eval.systems.crepe.parse import Answer, read_code

State = tuple[str, str]  # entity, attribute
_WORDING: Any = wording("crepe/wording")["code_two_step"]
_STYLE = CodeStyle()
_PRECONDITION = re.compile(r"""precondition\s*=\s*\\?\s*\(\s*(["'])(.+?)\1\s*,\s*(["'])(.+?)\3\s*\)""")


def ask_two_steps(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the preconditions of all events, then for the step functions of each procedure."""
    banks = _ask_banks(request, asker)
    opening = [system(_WORDING["changes"]), *exchanges(_solved_changes(shown) for shown in request.demonstrations)]
    conversations = []
    for procedure in request.procedures:
        code = _opened(procedure.goal, procedure.steps, procedure.events, banks[procedure.id])
        hidden = _opened(procedure.goal, hidden_steps(procedure), procedure.events, [])
        views = [*opening, user(code)], [*opening, user(hidden)]
        conversations.append(Conversation(request.dataset, procedure.id, *views, request.prompt))
    outputs = asker.ask("answers", conversations, max_new_tokens=TOKENS)
    return {
        procedure.id: read_code(output, len(procedure.steps), len(procedure.events), request.parse)
        for procedure, output in zip(request.procedures, outputs, strict=True)
    }


def _ask_banks(request: Request, asker: Asker) -> dict[str, list[State | None]]:
    """By procedure the state that decides about each event; None where no reply tells one."""
    pairs = [(shown, event) for shown in request.demonstrations for event in shown.events[:1]]
    opening = [system(_WORDING["preconditions"]), *exchanges(_solved_precondition(*pair) for pair in pairs)]
    conversations = [
        _precondition_conversation(request, opening, procedure, number)
        for procedure in request.procedures
        for number in range(len(procedure.events))
    ]
    replies = iter(asker.ask("preconditions", conversations, max_new_tokens=TOKENS))
    return {procedure.id: [most_frequent(next(replies)) for _ in procedure.events] for procedure in request.procedures}


def most_frequent(reply: str) -> State | None:
    """The precondition that most functions of a reply have, letter case aside; of several the first."""
    found = [(match[2].strip(), match[4].strip()) for match in _PRECONDITION.finditer(reply)]
    counts = Counter((entity.casefold(), attribute.casefold()) for entity, attribute in found)
    best = max(counts.values(), default=0)
    alike = (state for state in found if counts[state[0].casefold(), state[1].casefold()] == best)
    return next(alike, None)


def _precondition_conversation(request: Request, opening: Messages, procedure: Procedure, number: int) -> Conversation:
    told, hidden = (
        _asked_precondition(procedure.goal, steps, procedure.events[number])
        for steps in (procedure.steps, hidden_steps(procedure))
    )
    name = f"{procedure.id}/event{number}"
    return Conversation(request.dataset, name, [*opening, user(told)], [*opening, user(hidden)], request.prompt)


def _asked_precondition(goal: str, steps: Sequence[str], event: str) -> str:
    comments = [f"{INDENT}# {step}" for step in ("Start.", *steps)]
    return "\n".join([f"class {title(goal)}:", *comments, step_header(_STYLE, steps[0]), _event(event)])


def _event(event: str) -> str:
    return f'{INDENT * 2}event = "{event}"'


def _solved_precondition(shown: Demonstration, event: DemonstrationEvent) -> tuple[str, str]:
    state = f'{INDENT * 2}event.precondition = ("{event.entity}", "{event.attribute}")'
    lines = [state]
    for step in shown.steps[1:]:
        lines += [step_header(_STYLE, step), _event(event.event), state]
    return _asked_precondition(shown.goal, shown.steps, event.event), "\n".join(lines)


def _opened(goal: str, steps: Sequence[str], events: Sequence[str], bank: Sequence[State | None]) -> str:
    """The class down to the objects of the bank, with the attributes that count behind each."""
    attributes: dict[str, dict[str, None]] = {}
    for entity, attribute in filter(None, bank):
        attributes.setdefault(entity, {})[attribute] = None
    objects = [f"{object_line(entity)}  # {', '.join(names)}" for entity, names in attributes.items()]
    return "\n".join([header(_STYLE, goal, steps, events), *objects])


def _solved_changes(shown: Demonstration) -> tuple[str, str]:
    lines = []
    for step, text in enumerate(shown.steps, start=1):
        lines.append(step_header(_STYLE, text))
        states: Mapping[State, bool] = {(event.entity, event.attribute): event.holds[step] for event in shown.events}
        lines += [f"{INDENT * 2}self.{snake(entity)}.{snake(name)} = {h}" for (entity, name), h in states.items()]
        lines += [event_line(_STYLE, n, event.label(step), event.event) for n, event in enumerate(shown.events)]
    bank = [(event.entity, event.attribute) for event in shown.events]
    return _opened(shown.goal, shown.steps, [event.event for event in shown.events], bank), "\n".join(lines)

"""Code prompts (Figures 3, 5 and 6): the procedure as a class, as flat variables, or in two steps (appendix B.1).

The model completes a class after its constructor: all step functions at once, or with given entity states step by
step. So no state of a later step is seen before its turn. In two steps, the model first names an event's
precondition in each step; the most frequent one is its state, and all open the class.

Table of the families: docs/reference/systems/crepe.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any

from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, wording
from eval.systems.crepe import code_style as code
from eval.systems.crepe.code_style import INDENT, CodeStyle, header, hidden_steps
from eval.systems.crepe.family import Demonstration, DemonstrationEvent, Request, answers_by_event, event_names, hold
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, EntityChange
from eval.systems.crepe.parse import Answer, Parse, read_code, read_option

_WORDING: Any = wording("crepe/wording")
# As the official code: procedures of many steps and events take long functions.
_TOKENS = 2_000
_TURN_TOKENS = 256
_FLAT_TOKENS = 12
# The order of the paper's example; `parse.read_option` reads places in it.
_OPTIONS = (MORE, LESS, EQUALLY)
_States = Sequence[Sequence[EntityChange]]
_STYLES: dict[str, CodeStyle] = {
    "code": CodeStyle(),
    "code_no_step_comments": CodeStyle(step_comments=False),
    "code_no_event_comments": CodeStyle(event_comments=False),
    "code_nested": CodeStyle(nested=True),
}
_GIVEN = CodeStyle(entities="gold")
_STYLE = CodeStyle()


def ask_code(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the step functions of each procedure: all at once, or a turn each where the states are given."""
    if request.entities in ("gold", "predicted"):
        return _ask_step_by_step(request, asker)
    style = replace(_STYLES[request.prompt], entities=request.entities)
    names = [f"code_{request.entities}", request.prompt, "code"]
    instruction = _WORDING[next(name for name in names if name in _WORDING)]["system"]
    solved = (
        (header(style, shown.goal, shown.steps, [event.event for event in shown.events]), code.solution(shown, style))
        for shown in request.demonstrations
    )
    opening = [system(instruction), *exchanges(solved)]
    chats = []
    for one in request.procedures:
        views = [header(style, one.goal, steps, one.events) for steps in (one.steps, hidden_steps(one))]
        chats.append(request.conversation(one.id, opening, (views[0], views[1])))
    return _ask_for_code(request, asker, chats)


def _ask_for_code(request: Request, asker: Asker, chats: Sequence[Conversation]) -> dict[str, Answer]:
    """Ask for all step functions of each procedure."""
    outputs = asker.ask("answers", chats, max_new_tokens=_TOKENS, style=request.style)
    return {
        procedure.id: read_code(output, len(procedure.steps), len(procedure.events), request.parse)
        for procedure, output in zip(request.procedures, outputs, strict=True)
    }


def _ask_step_by_step(request: Request, asker: Asker) -> dict[str, Answer]:
    pairs = []
    for shown in request.demonstrations:
        own = _turns(shown.goal, shown.steps, [event.event for event in shown.events], shown.entity_changes)
        for step, turn in enumerate(own, start=1):
            lines = [code.event_line(_GIVEN, n, e.label(step), e.event) for n, e in enumerate(shown.events)]
            pairs.append((turn, "\n".join(lines)))
    opening = [system(_WORDING["code_given"]["system"]), *exchanges(pairs)]
    turns = {}
    for one in request.procedures:
        questions = _turns(one.goal, one.steps, one.events, request.states[one.id])
        hidden = _turns(one.goal, hidden_steps(one), one.events, [()] * len(one.steps))
        turns[one.id] = list(zip(questions, hidden, strict=True))
    replies = hold(request, asker, opening, turns, _TURN_TOKENS)
    answers = {}
    for one in request.procedures:
        said = zip(replies[one.id], one.steps, strict=True)
        answers[one.id] = Answer([_labels(reply, step, len(one.events), request.parse) for reply, step in said])
    return answers


def _labels(reply: str, step: str, events: int, parse: Parse) -> list[int | None]:
    """Return the labels in a reply about one step, without the earlier code that it may repeat."""
    repeated = reply.rfind(f"def {code.snake(step)}(")
    return read_code(reply[max(repeated, 0) :], 1, events, parse).labels[0]


def _turns(goal: str, steps: Sequence[str], events: Sequence[str], states: _States) -> list[str]:
    entities = dict.fromkeys(change.entity for changes in states for change in changes)
    start = [header(_GIVEN, goal, steps, events), *map(code.object_line, entities)]
    turns = []
    for step, changes in zip(steps, states, strict=True):
        lines = [code.step_header(_GIVEN, step)]
        lines += [code.attribute_line(c.entity, c.attribute, c.change) for c in changes]
        turns.append("\n".join([*start, *lines]))
        start = []
    return turns


def ask_flat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event, a step per turn."""
    solved = (
        (turn, f"Options[{_OPTIONS.index(shown.events[0].label(step))}]")
        for shown in request.demonstrations
        for step, turn in enumerate(_flat_turns(shown.goal, shown.steps, shown.events[0].event), start=1)
    )
    opening = [system(_WORDING["code_flat"]["system"]), *exchanges(solved)]
    turns = {
        name: [(turn, hidden) for turn, hidden in zip(*views, strict=True)]
        for one in request.procedures
        for name, event in zip(event_names(one), one.events, strict=True)
        for views in [[_flat_turns(one.goal, steps, event) for steps in (one.steps, [""] * len(one.steps))]]
    }
    replies = hold(request, asker, opening, turns, _FLAT_TOKENS)
    return answers_by_event(request, lambda name: list(map(read_option, replies[name])))


def _flat_turns(goal: str, steps: Sequence[str], event: str) -> list[str]:
    question = _quoted(_WORDING["code_flat"]["question"].format(event=event))
    options = ", ".join(_quoted(LABELS[label]) for label in _OPTIONS)
    turns = [f"Context = {_quoted(step)}\nQuestion = {question}\nOptions = [{options}]\nAnswer =" for step in steps]
    return [f"Goal = {_quoted(goal)}\n{turns[0]}", *turns[1:]]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


State = tuple[str, str]  # entity, attribute
_PRECONDITION = re.compile(r"""precondition\s*=\s*\\?\s*\(\s*(["'])(.+?)\1\s*,\s*(["'])(.+?)\3\s*\)""")


def ask_two_steps(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the preconditions of all events, then for the step functions of each procedure."""
    banks = _ask_banks(request, asker)
    opening = [system(_WORDING["code_two_step"]["changes"]), *exchanges(map(_solved_changes, request.demonstrations))]
    chats = []
    for one in request.procedures:
        shown = _opened(one.goal, one.steps, one.events, banks[one.id])
        hidden = _opened(one.goal, hidden_steps(one), one.events, [])
        chats.append(request.conversation(one.id, opening, (shown, hidden)))
    return _ask_for_code(request, asker, chats)


def _ask_banks(request: Request, asker: Asker) -> dict[str, list[State | None]]:
    """Return by procedure the state that decides about each event; None if no reply names one."""
    pairs = [(shown, event) for shown in request.demonstrations for event in shown.events[:1]]
    opening = [system(_WORDING["code_two_step"]["preconditions"]), *exchanges(starmap(_solved_precondition, pairs))]
    chats = []
    for one in request.procedures:
        for name, event in zip(event_names(one), one.events, strict=True):
            views = [_asked_precondition(one.goal, steps, event) for steps in (one.steps, hidden_steps(one))]
            chats.append(request.conversation(name, opening, (views[0], views[1])))
    replies = iter(asker.ask("preconditions", chats, max_new_tokens=_TOKENS, style=request.style))
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

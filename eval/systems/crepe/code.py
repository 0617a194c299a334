"""Code prompts (Figures 3, 5 and 6): the procedure as a class, as flat variables, or in two steps (appendix B.1).

The model completes a class after its constructor: all step functions at once, or with given entity states step by
step. So no state of a later step is seen before its turn. In two steps, the model first names an event's
precondition in each step; the most frequent one is its state, and all open the class.
"""

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from eval.systems.asking import Asker, exchanges, filled, macros, system
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, CrepeProcedure, EntityChange
from eval.systems.crepe.parse import CrepeAnswer, EventLabels, read_code, read_option
from eval.systems.crepe.prompts import (
    WORDING,
    CrepeTurn,
    Demonstration,
    Entities,
    Request,
    answers_by_event,
    by_event,
    converse,
    event_names,
)

_LEFT_OUT = {"a", "an", "the", "my", "your", "his", "her", "their", "our"}
# As the official code: procedures of many steps and events take long functions.
_TOKENS = 2_000
_TURN_TOKENS = 256
_FLAT_TOKENS = 12
# The order of the paper's example; `parse.read_option` reads places in it.
_OPTIONS = (MORE, LESS, EQUALLY)


def snake(text: str) -> str:
    """Return `the pan` as `pan`, `Turn on the tap.` as `turn_on_tap`."""
    return _valid("_".join(word.lower() for word in _words(text)))


def title(text: str) -> str:
    """Return `Wash the sneakers` as `Wash_Sneakers`."""
    return _valid("_".join(word.capitalize() for word in _words(text)))


def _words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.replace("'", ""))
    return [word for word in words if word.lower() not in _LEFT_OUT] or words


def _valid(name: str) -> str:
    if not name or name[0].isdigit():
        return f"n_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


class Outline(NamedTuple):
    """What code says of a procedure."""

    goal: str
    steps: Sequence[str]
    events: Sequence[str]

    @classmethod
    def views(cls, procedure: CrepeProcedure | Demonstration) -> "tuple[Outline, Outline]":
        """Return the procedure as it is, and in the imagined view, where steps have only numbers."""
        events = [event if isinstance(event, str) else event.event for event in procedure.events]
        numbers = [f"Step {number}." for number in range(1, len(procedure.steps) + 1)]
        return cls(procedure.goal, procedure.steps, events), cls(procedure.goal, numbers, events)


@dataclass(frozen=True)
class CodeStyle:
    """How `code.jinja` writes a procedure: `nested` functions inside a function, or methods of a class.

    `step_comments` puts the steps at the top; `event_comments` puts events in step functions, too.
    """

    nested: bool = False
    step_comments: bool = True
    event_comments: bool = True
    entities: Entities = "none"


_CODE = macros("crepe/code", snake=snake, title=title, labels=LABELS)
_STYLE = CodeStyle()
_STYLES: dict[str, CodeStyle] = {
    "code": _STYLE,
    "code_no_step_comments": CodeStyle(step_comments=False),
    "code_no_event_comments": CodeStyle(event_comments=False),
    "code_nested": CodeStyle(nested=True),
}


def ask_code(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    """Ask for the step functions of each procedure: all at once, or a turn each where the states are given."""
    if request.entities in ("gold", "predicted"):
        return _ask_step_by_step(request, asker)
    style = replace(_STYLES[request.prompt], entities=request.entities)
    names = [f"code_{request.entities}", request.prompt, "code"]
    instruction = WORDING[next(name for name in names if name in WORDING)]["system"]
    shown = request.demonstrations
    solved = [
        (_CODE["header"](Outline.views(example)[0], style), _CODE["solution"](example, style)) for example in shown
    ]
    turns = {
        procedure.id: CrepeTurn(*(_CODE["header"](view, style) for view in Outline.views(procedure)))
        for procedure in request.procedures
    }
    return _ask_whole(request, asker, instruction, solved, turns)


def _ask_whole(
    request: Request, asker: Asker, instruction: str, solved: Sequence[tuple[str, str]], turns: Mapping[str, CrepeTurn]
) -> dict[str, CrepeAnswer]:
    opening = [system(instruction), *exchanges(solved)]
    replies = converse(request, asker, opening, {name: [turn] for name, turn in turns.items()}, _TOKENS)
    return {
        procedure.id: read_code(replies[procedure.id][0], len(procedure.steps), len(procedure.events), request.parse)
        for procedure in request.procedures
    }


def _ask_step_by_step(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    pairs = []
    for shown in request.demonstrations:
        questions = _given_turns(Outline.views(shown)[0], shown.entity_changes)
        answers = (_CODE["changes"](shown, step, _STYLE) for step in range(1, len(shown.steps) + 1))
        pairs += list(zip(questions, answers, strict=True))
    turns = {}
    for procedure in request.procedures:
        original, imagined = Outline.views(procedure)
        hidden = _given_turns(imagined, [[]] * len(procedure.steps))
        turns[procedure.id] = list(map(CrepeTurn, _given_turns(original, request.states[procedure.id]), hidden))
    opening = [system(WORDING["code_given"]["system"]), *exchanges(pairs)]
    replies = converse(request, asker, opening, turns, _TURN_TOKENS, dialogue=True)

    def labels(reply: str, step: str, events: int) -> EventLabels:
        """Return the labels in a reply about one step, without the earlier code that it may repeat."""
        repeated = reply.rfind(f"def {snake(step)}(")
        return read_code(reply[max(repeated, 0) :], 1, events, request.parse).labels[0]

    return {
        name: CrepeAnswer([labels(*pair, len(events)) for pair in zip(replies[name], steps, strict=True)])
        for name, steps, events in ((p.id, p.steps, p.events) for p in request.procedures)
    }


def _given_turns(outline: Outline, states: Sequence[Sequence[EntityChange]]) -> list[str]:
    """Return the code up to each step's events; the first part has the class and all its objects."""
    return [_CODE["given"](outline, states, place, _STYLE) for place in range(len(outline.steps))]


def ask_flat(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    """Hold one dialogue for each event, a step per turn."""
    solved = (
        (turn, f"Options[{_OPTIONS.index(shown.events[0].label(step))}]")
        for shown in request.demonstrations
        for step, turn in enumerate(_flat_turns(shown.goal, shown.steps, shown.events[0].event), start=1)
    )
    opening = [system(WORDING["code_flat"]["system"]), *exchanges(solved)]

    def turns(procedure: CrepeProcedure, event: str) -> list[CrepeTurn]:
        views = (_flat_turns(procedure.goal, steps, event) for steps in (procedure.steps, [""] * len(procedure.steps)))
        return list(map(CrepeTurn, *views))

    replies = converse(request, asker, opening, by_event(request, turns), _FLAT_TOKENS, dialogue=True)
    return answers_by_event(request, lambda texts, _: list(map(read_option, texts)), replies)


def _flat_turns(goal: str, steps: Sequence[str], event: str) -> list[str]:
    question = _quoted(filled(WORDING["code_flat"]["question"], event=event))
    options = ", ".join(_quoted(LABELS[label]) for label in _OPTIONS)
    turns = [f"Context = {_quoted(step)}\nQuestion = {question}\nOptions = [{options}]\nAnswer =" for step in steps]
    return [f"Goal = {_quoted(goal)}\n{turns[0]}", *turns[1:]]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


State = tuple[str, str]  # entity, attribute
_PRECONDITION = re.compile(r"""precondition\s*=\s*\\?\s*\(\s*(["'])(.+?)\1\s*,\s*(["'])(.+?)\3\s*\)""")


def ask_two_steps(request: Request, asker: Asker) -> dict[str, CrepeAnswer]:
    """Ask for the preconditions of all events, then for the step functions of each procedure."""
    texts, solved, completed = WORDING["code_two_step"], [], []
    for shown in request.demonstrations:
        outline, event = Outline.views(shown)[0], shown.events[0]
        solved.append((_CODE["asked"](outline, event.event, _STYLE), _CODE["preconditions"](shown, event, _STYLE)))
        states = {(event.entity, event.attribute): event.holds for event in shown.events}
        completed.append((_opened(outline, states), _CODE["completed"](shown, states, _STYLE)))
    turns = by_event(
        request,
        lambda procedure, event: [
            CrepeTurn(*(_CODE["asked"](view, event, _STYLE) for view in Outline.views(procedure)))
        ],
    )
    opening = [system(texts["preconditions"]), *exchanges(solved)]
    replies = converse(request, asker, opening, turns, _TOKENS, name="preconditions")
    classes = {}
    for procedure in request.procedures:
        original, imagined = Outline.views(procedure)
        bank = [most_frequent(replies[name][0]) for name in event_names(procedure)]
        classes[procedure.id] = CrepeTurn(_opened(original, filter(None, bank)), _opened(imagined, []))
    return _ask_whole(request, asker, texts["changes"], completed, classes)


def most_frequent(reply: str) -> State | None:
    """Return the most frequent precondition in a reply, ignoring letter case; of several the first."""
    states = [(match[2].strip(), match[4].strip()) for match in _PRECONDITION.finditer(reply)]
    folded = [(entity.casefold(), attribute.casefold()) for entity, attribute in states]
    return states[folded.index(Counter(folded).most_common(1)[0][0])] if states else None


def _opened(outline: Outline, bank: Iterable[State]) -> str:
    """Return the class down to the objects of the bank, each with its attributes."""
    attributes: dict[str, dict[str, None]] = {}
    for entity, attribute in bank:
        attributes.setdefault(entity, {})[attribute] = None
    return _CODE["opened"](outline, attributes, _STYLE)

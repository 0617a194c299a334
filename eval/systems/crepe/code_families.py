"""Code prompts (Figures 3, 5 and 6): the procedure as a class down to its constructor, and as flat variables.

The model writes all step functions of the class. The ablations leave out the comments of the steps or of the events
in step functions, or put nested functions in the class's place (section 4.4). As in the paper, a prompt without step
comments does not tell the steps at all: the model names them itself in the functions it writes. Entity states that
the model writes before it sets the events are sub-events (soft) or attributes of objects (hard); it declares them
itself at the end of the constructor.

With given entity states, gold or predicted (sections 5.2 and 5.3), the class is completed step by step: each turn
shows the next step function down to the attributes that the step changes, and the model sets the events. So no state
of a later step is seen before its turn. Flat variables (appendix B.1) are goal, step, question and options; the model
writes the value of the answer.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, user, wording
from eval.systems.crepe.demonstrations import Demonstration
from eval.systems.crepe.family import Dialogue, Entities, Request, hold, hold_by_event
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, EntityChange, Procedure
from eval.systems.crepe.parse import Answer, Parse, read_code, read_option

_WORDING: Any = wording("crepe/wording")
# As the official code: procedures of many steps and events take long functions.
TOKENS = 2_000
_TURN_TOKENS = 256
_FLAT_TOKENS = 12
INDENT = "    "
_LEFT_OUT = {"a", "an", "the", "my", "your", "his", "her", "their", "our"}
# The order of the paper's example; `parse.read_option` reads places in it.
_OPTIONS = (MORE, LESS, EQUALLY)
_States = Sequence[Sequence[EntityChange]]


@dataclass(frozen=True)
class CodeStyle:
    """How a procedure is written as code.

    Attributes:
        nested: functions inside a function, in place of a class's methods.
        step_comments: the steps as comments at the top.
        event_comments: in step functions, too.
    """

    nested: bool = False
    step_comments: bool = True
    event_comments: bool = True
    entities: Entities = "none"

    @property
    def owner(self) -> str:
        """What stands before an event's name."""
        return "" if self.nested else "self."


_STYLES: dict[str, CodeStyle] = {
    "code": CodeStyle(),
    "code_no_step_comments": CodeStyle(step_comments=False),
    "code_no_event_comments": CodeStyle(event_comments=False),
    "code_nested": CodeStyle(nested=True),
}
_GIVEN = CodeStyle(entities="gold")


def ask_code(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the step functions of each procedure: all at once, or a turn each where the states are given."""
    if request.entities in ("gold", "predicted"):
        return _ask_step_by_step(request, asker)
    style = replace(_STYLES[request.prompt], entities=request.entities)
    opening = [system(_instruction(request)), *_demonstrated(request.demonstrations, style)]
    conversations = []
    for procedure in request.procedures:
        code, hidden = (
            header(style, procedure.goal, steps, procedure.events)
            for steps in (procedure.steps, hidden_steps(procedure))
        )
        name, group = procedure.id, request.prompt
        conversations.append(
            Conversation(request.dataset, name, [*opening, user(code)], [*opening, user(hidden)], group=group)
        )
    outputs = asker.ask("answers", conversations, max_new_tokens=TOKENS)
    return {
        procedure.id: read_code(output, len(procedure.steps), len(procedure.events), request.parse)
        for procedure, output in zip(request.procedures, outputs, strict=True)
    }


def _instruction(request: Request) -> str:
    names = [f"code_{request.entities}", request.prompt, "code"]
    text: str = _WORDING[next(name for name in names if name in _WORDING)]["system"]
    return text


def hidden_steps(procedure: Procedure) -> list[str]:
    """What stands in the steps' places in the imagined view: their number alone."""
    return [f"Step {number}." for number in range(1, len(procedure.steps) + 1)]


def snake(text: str) -> str:
    """`the pan` → `pan`, `Turn on the tap.` → `turn_on_tap`."""
    return _valid("_".join(word.lower() for word in _words(text)))


def title(text: str) -> str:
    """`Wash the sneakers` → `Wash_Sneakers`."""
    return _valid("_".join(word.capitalize() for word in _words(text)))


def _words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.replace("'", ""))
    return [word for word in words if word.lower() not in _LEFT_OUT] or words


def _valid(name: str) -> str:
    if not name or name[0].isdigit():
        return f"n_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name


def header(style: CodeStyle, goal: str, steps: Sequence[str], events: Sequence[str]) -> str:
    """The code down to the last line of the constructor that tells an event."""
    names = [f"event{number}" for number in range(len(events))]
    if style.entities == "soft":
        names = [part for number in range(len(events)) for part in (f"event{number}", f"subevent{number}")]
    comments = [f"{INDENT}# {step}" for step in ("Start.", *steps)] if style.step_comments else []
    if style.nested:
        lines = [f"def {snake(goal)}({', '.join(names)}):", *comments]
        depth = INDENT
    else:
        lines = [f"class {title(goal)}:", *comments, f"{INDENT}def __init__(self, {', '.join(names)}):"]
        depth = INDENT * 2
    lines += [f"{depth}{style.owner}event{n} = event{n}  # {event}" for n, event in enumerate(events)]
    return "\n".join(lines)


def step_header(style: CodeStyle, step: str) -> str:
    """The line that begins a step's function."""
    return f"{INDENT}def {snake(step)}({'' if style.nested else 'self'}):"


def event_line(style: CodeStyle, number: int, label: int, event: str) -> str:
    """The line that sets an event's change."""
    comment = f"  # {event}" if style.event_comments else ""
    return f'{INDENT * 2}{style.owner}event{number}.change = "{LABELS[label]}"{comment}'


def attribute_line(entity: str, attribute: str, change: str) -> str:
    """The line that sets an attribute of an entity's object."""
    return f"{INDENT * 2}self.{snake(entity)}.{snake(attribute)} = {change == LABELS[MORE]}"


def object_line(entity: str) -> str:
    """The line of the constructor that makes an entity's object."""
    return f"{INDENT * 2}self.{snake(entity)} = {title(entity)}()"


def _demonstrated(demonstrations: Sequence[Demonstration], style: CodeStyle) -> Messages:
    return exchanges(
        (header(style, shown.goal, shown.steps, [event.event for event in shown.events]), solution(shown, style))
        for shown in demonstrations
    )


def solution(shown: Demonstration, style: CodeStyle) -> str:
    """What a model is to write after the header of a demonstration."""
    lines = []
    if style.entities == "soft":
        for number, event in enumerate(shown.events):
            lines.append(f"{INDENT * 2}self.event{number}.subevent = subevent{number}  # {event.subevent}")
    if style.entities == "hard":
        lines += [object_line(entity) for entity in dict.fromkeys(event.entity for event in shown.events)]
    for step, text in enumerate(shown.steps, start=1):
        lines.append(step_header(style, text))
        if style.entities == "hard":
            lines += [attribute_line(c.entity, c.attribute, c.change) for c in shown.entity_changes[step - 1]]
        for number, event in enumerate(shown.events):
            if style.entities == "soft":
                label = LABELS[event.state_label(step)]
                lines.append(f'{INDENT * 2}self.event{number}.subevent.change = "{label}"  # {event.subevent}')
            lines.append(event_line(style, number, event.label(step), event.event))
    return "\n".join(lines)


def _ask_step_by_step(request: Request, asker: Asker) -> dict[str, Answer]:
    opening = [system(_WORDING["code_given"]["system"]), *_demonstrated_turns(request.demonstrations)]
    dialogues = []
    for procedure in request.procedures:
        told = _turns(procedure.goal, procedure.steps, procedure.events, request.states[procedure.id])
        nothing: _States = [()] * len(procedure.steps)
        hidden = _turns(procedure.goal, hidden_steps(procedure), procedure.events, nothing)
        dialogues.append(Dialogue(procedure.id, opening, list(zip(told, hidden, strict=True))))
    replies = hold(request, asker, dialogues, max_new_tokens=_TURN_TOKENS)
    return {
        procedure.id: Answer(
            [
                _labels(reply, step, len(procedure.events), request.parse)
                for reply, step in zip(said, procedure.steps, strict=True)
            ]
        )
        for procedure, said in zip(request.procedures, replies, strict=True)
    }


def _labels(reply: str, step: str, events: int, parse: Parse) -> list[int | None]:
    """What a reply says about its step; where it repeats the code before, that is passed over."""
    repeated = reply.rfind(f"def {snake(step)}(")
    return read_code(reply[max(repeated, 0) :], 1, events, parse).labels[0]


def _turns(goal: str, steps: Sequence[str], events: Sequence[str], states: _States) -> list[str]:
    entities = dict.fromkeys(change.entity for changes in states for change in changes)
    start = [header(_GIVEN, goal, steps, events), *map(object_line, entities)]
    turns = []
    for step, changes in zip(steps, states, strict=True):
        lines = [step_header(_GIVEN, step), *(attribute_line(c.entity, c.attribute, c.change) for c in changes)]
        turns.append("\n".join([*start, *lines]))
        start = []
    return turns


def _demonstrated_turns(demonstrations: Sequence[Demonstration]) -> Messages:
    pairs = []
    for shown in demonstrations:
        turns = _turns(shown.goal, shown.steps, [event.event for event in shown.events], shown.entity_changes)
        for step, turn in enumerate(turns, start=1):
            lines = [event_line(_GIVEN, n, event.label(step), event.event) for n, event in enumerate(shown.events)]
            pairs.append((turn, "\n".join(lines)))
    return exchanges(pairs)


def ask_flat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event, a step a turn."""
    opening = [system(_WORDING["code_flat"]["system"]), *_demonstrated_flat(request)]

    def turns(procedure: Procedure, event: str) -> list[tuple[str, str]]:
        told = _flat_turns(procedure.goal, procedure.steps, event)
        hidden = _flat_turns(procedure.goal, [""] * len(procedure.steps), event)
        return list(zip(told, hidden, strict=True))

    return hold_by_event(
        request, asker, opening, turns, lambda said: list(map(read_option, said)), max_new_tokens=_FLAT_TOKENS
    )


def _flat_turns(goal: str, steps: Sequence[str], event: str) -> list[str]:
    question = _WORDING["code_flat"]["question"].format(event=event)
    options = ", ".join(_quoted(LABELS[label]) for label in _OPTIONS)
    turns = [
        f"Context = {_quoted(step)}\nQuestion = {_quoted(question)}\nOptions = [{options}]\nAnswer =" for step in steps
    ]
    return [f"Goal = {_quoted(goal)}\n{turns[0]}", *turns[1:]]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _demonstrated_flat(request: Request) -> Messages:
    return exchanges(
        (turn, f"Options[{_OPTIONS.index(shown.events[0].label(step))}]")
        for shown in request.demonstrations
        for step, turn in enumerate(_flat_turns(shown.goal, shown.steps, shown.events[0].event), start=1)
    )

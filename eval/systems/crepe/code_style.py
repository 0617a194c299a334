"""How a procedure is written as code: a class or nested functions, with comments, sub-events or objects."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eval.systems.crepe.family import Demonstration, Entities
from eval.systems.crepe.gold import LABELS, MORE, Procedure

INDENT = "    "
_LEFT_OUT = {"a", "an", "the", "my", "your", "his", "her", "their", "our"}


@dataclass(frozen=True)
class CodeStyle:
    """How a procedure is written as code.

    Attributes:
        nested: functions inside a function instead of a class's methods.
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


def hidden_steps(procedure: Procedure) -> list[str]:
    """Return the steps of the imagined view: only their numbers."""
    return [f"Step {number}." for number in range(1, len(procedure.steps) + 1)]


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


def header(style: CodeStyle, goal: str, steps: Sequence[str], events: Sequence[str]) -> str:
    """Return the code down to the last line of the constructor with an event."""
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
    """Return the line that begins a step's function."""
    return f"{INDENT}def {snake(step)}({'' if style.nested else 'self'}):"


def event_line(style: CodeStyle, number: int, label: int, event: str) -> str:
    """Return the line that sets an event's change."""
    comment = f"  # {event}" if style.event_comments else ""
    return f'{INDENT * 2}{style.owner}event{number}.change = "{LABELS[label]}"{comment}'


def attribute_line(entity: str, attribute: str, change: str) -> str:
    """Return the line that sets an attribute of an entity's object."""
    return f"{INDENT * 2}self.{snake(entity)}.{snake(attribute)} = {change == LABELS[MORE]}"


def object_line(entity: str) -> str:
    """Return the line of the constructor that makes an entity's object."""
    return f"{INDENT * 2}self.{snake(entity)} = {title(entity)}()"


def solution(shown: Demonstration, style: CodeStyle) -> str:
    """Return the code that follows the header of a demonstration."""
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

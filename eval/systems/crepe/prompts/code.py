"""Code (Figures 3, 5 and 6): the procedure as a class down to its constructor; the model writes all step functions.

The ablations leave out the comments of the steps or of the events in step functions, or put nested functions in the
class's place (section 4.4). As in the paper, a prompt without step comments does not tell the steps at all: the model
names them itself in the functions it writes. Entity states that the model writes before it sets the events are
sub-events (soft) or attributes of objects (hard); it declares them itself at the end of the constructor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.data.chat_template import Messages
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.crepe.demonstrations import Demonstration
from eval.systems.crepe.labels import LABELS, MORE
from eval.systems.crepe.options import Entities, Prompt
from eval.systems.crepe.parse import read_code
from eval.systems.crepe.prompts.family import Answer, Request, system, user, wording
from eval.systems.crepe.prompts.identifiers import snake, title

# As the official code: procedures of many steps and events take long functions.
_TOKENS = 2_000
INDENT = "    "


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


_STYLES: dict[Prompt, CodeStyle] = {
    "code": CodeStyle(),
    "code_no_step_comments": CodeStyle(step_comments=False),
    "code_no_event_comments": CodeStyle(event_comments=False),
    "code_nested": CodeStyle(nested=True),
}


def ask_code(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask for the step functions of each procedure, all at once."""
    style = style_of(request)
    opening = [system(_instruction(request)), *_demonstrated(request.demonstrations, style)]
    conversations = []
    for procedure in request.procedures:
        code, hidden = (
            header(style, procedure.goal, steps, procedure.events)
            for steps in (procedure.steps, hidden_steps(len(procedure.steps)))
        )
        name = procedure.id
        conversations.append(
            Conversation(request.dataset, name, [*opening, user(code)], [*opening, user(hidden)], group=request.prompt)
        )
    outputs = asker.ask("answers", conversations, max_new_tokens=_TOKENS)
    answers = {}
    for procedure, output in zip(request.procedures, outputs, strict=True):
        found = read_code(output, len(procedure.steps), len(procedure.events), request.parse)
        answers[procedure.id] = Answer(found.labels, found.entities)
    return answers


def style_of(request: Request) -> CodeStyle:
    """How the request writes its code."""
    if request.prompt == "code":
        return CodeStyle(entities=request.entities)
    return _STYLES[request.prompt]


def _instruction(request: Request) -> str:
    names = [f"code_{request.entities}", request.prompt, "code"]
    text: str = wording()[next(name for name in names if name in wording())]["system"]
    return text


def hidden_steps(count: int) -> list[str]:
    """What stands in the steps' places in the imagined view: their number alone."""
    return [f"Step {number}." for number in range(1, count + 1)]


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
    messages: Messages = []
    for shown in demonstrations:
        asked = header(style, shown.goal, shown.steps, [event.event for event in shown.events])
        messages += [user(asked), {"role": "assistant", "content": solution(shown, style)}]
    return messages


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
            lines += [attribute_line(c.entity, c.attribute, c.change) for c in shown.entity_changes(step)]
        for number, event in enumerate(shown.events):
            if style.entities == "soft":
                label = LABELS[event.state_label(step)]
                lines.append(f'{INDENT * 2}self.event{number}.subevent.change = "{label}"  # {event.subevent}')
            lines.append(event_line(style, number, event.label(step), event.event))
    return "\n".join(lines)

"""Code with given entity states, gold or predicted (sections 5.2 and 5.3): the class is completed step by step.

Each turn shows the next step function down to the attributes that the step changes; the model sets the events. So no
state of a later step is seen before its turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.crepe.demonstrations import Demonstration
from eval.systems.crepe.gold import EntityChange
from eval.systems.crepe.options import Parse
from eval.systems.crepe.parse import read_code
from eval.systems.crepe.prompts.code import (
    CodeStyle,
    attribute_line,
    event_line,
    header,
    hidden_steps,
    object_line,
    step_header,
)
from eval.systems.crepe.prompts.family import Answer, Dialogue, Request, hold, system, user, wording
from eval.systems.crepe.prompts.identifiers import snake

_TOKENS = 256
_STYLE = CodeStyle(entities="gold")
_States = Sequence[Sequence[EntityChange]]


def ask_code_given(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each procedure, a step function a turn."""
    opening = [system(wording()["code_given"]["system"]), *_demonstrated(request.demonstrations)]
    dialogues = []
    for procedure in request.procedures:
        told = _turns(procedure.goal, procedure.steps, procedure.events, request.states[procedure.id])
        nothing: _States = [()] * len(procedure.steps)
        hidden = _turns(procedure.goal, hidden_steps(len(procedure.steps)), procedure.events, nothing)
        turns = list(zip(told, hidden, strict=True))
        dialogues.append(Dialogue(procedure.id, request.prompt, opening, turns))
    replies = hold(asker, request.dataset, dialogues, max_new_tokens=_TOKENS)
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
    start = [header(_STYLE, goal, steps, events), *map(object_line, entities)]
    turns = []
    for step, changes in zip(steps, states, strict=True):
        lines = [step_header(_STYLE, step), *(attribute_line(c.entity, c.attribute, c.change) for c in changes)]
        turns.append("\n".join([*start, *lines]))
        start = []
    return turns


def _demonstrated(demonstrations: Sequence[Demonstration]) -> Messages:
    messages: Messages = []
    for shown in demonstrations:
        events = [event.event for event in shown.events]
        states = [shown.entity_changes(step) for step in range(1, len(shown.steps) + 1)]
        for step, turn in enumerate(_turns(shown.goal, shown.steps, events, states), start=1):
            lines = [event_line(_STYLE, n, event.label(step), event.event) for n, event in enumerate(shown.events)]
            messages += [user(turn), {"role": "assistant", "content": "\n".join(lines)}]
    return messages

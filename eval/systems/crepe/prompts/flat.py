"""Flat variables (appendix B.1): goal, step, question and options; the model writes the value of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.crepe.labels import EQUALLY, LABELS, LESS, MORE
from eval.systems.crepe.parse import read_option
from eval.systems.crepe.prompts.family import Answer, Dialogue, Request, assistant, hold, system, user, wording

_TOKENS = 12
# The order of the paper's example; `parse.read_option` reads places in it.
_OPTIONS = (MORE, LESS, EQUALLY)


def ask_flat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event, a step a turn."""
    opening = [system(wording()["code_flat"]["system"]), *_demonstrated(request)]
    dialogues = []
    for procedure in request.procedures:
        for number, event in enumerate(procedure.events):
            told = _turns(procedure.goal, procedure.steps, event)
            hidden = _turns(procedure.goal, [""] * len(procedure.steps), event)
            name = f"{procedure.id}/event{number}"
            dialogues.append(Dialogue(name, request.prompt, opening, list(zip(told, hidden, strict=True))))
    replies = iter(hold(asker, request.dataset, dialogues, max_new_tokens=_TOKENS))
    answers = {}
    for procedure in request.procedures:
        columns = [[read_option(reply) for reply in next(replies)] for _ in procedure.events]
        answers[procedure.id] = Answer([list(row) for row in zip(*columns, strict=True)])
    return answers


def _turns(goal: str, steps: Sequence[str], event: str) -> list[str]:
    question = wording()["code_flat"]["question"].format(event=event)
    options = ", ".join(_quoted(LABELS[label]) for label in _OPTIONS)
    turns = [
        f"Context = {_quoted(step)}\nQuestion = {_quoted(question)}\nOptions = [{options}]\nAnswer =" for step in steps
    ]
    return [f"Goal = {_quoted(goal)}\n{turns[0]}", *turns[1:]]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _demonstrated(request: Request) -> Messages:
    messages: Messages = []
    for shown in request.demonstrations:
        event = shown.events[0]
        for step, turn in enumerate(_turns(shown.goal, shown.steps, event.event), start=1):
            messages += [user(turn), assistant(f"Options[{_OPTIONS.index(event.label(step))}]")]
    return messages

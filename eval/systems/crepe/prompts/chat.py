"""Multi-turn chat (appendix B.3): the steps are told one by one, and after each the model says yes or no."""

from __future__ import annotations

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.crepe.gold import Procedure
from eval.systems.crepe.parse import changes_of, read_yes_or_no
from eval.systems.crepe.prompts.family import Answer, Dialogue, Request, assistant, hold, system, user, wording

_TOKENS = 12


def ask_chat(request: Request, asker: Asker) -> dict[str, Answer]:
    """Hold one dialogue for each event; it begins before the first step, to have something to compare with."""
    opening = [system(wording()["chat"]["system"]), *_demonstrated(request)]
    dialogues = [
        Dialogue(f"{procedure.id}/event{number}", request.prompt, opening, _turns(procedure, event))
        for procedure in request.procedures
        for number, event in enumerate(procedure.events)
    ]
    replies = iter(hold(asker, request.dataset, dialogues, max_new_tokens=_TOKENS))
    answers = {}
    for procedure in request.procedures:
        columns = [changes_of([read_yes_or_no(reply) for reply in next(replies)]) for _ in procedure.events]
        answers[procedure.id] = Answer([list(row) for row in zip(*columns, strict=True)])
    return answers


def _turns(procedure: Procedure, event: str) -> list[tuple[str, str]]:
    texts = wording()["chat"]
    start = texts["start"].format(goal=procedure.goal, event=event)
    return [(start, start), *((texts["turn"].format(step=step), texts["hidden_turn"]) for step in procedure.steps)]


def _demonstrated(request: Request) -> Messages:
    messages: Messages = []
    texts = wording()["chat"]
    for shown in request.demonstrations:
        event = shown.events[0]
        said = [texts["start"].format(goal=shown.goal, event=event.event)]
        said += [texts["turn"].format(step=step) for step in shown.steps]
        for step, question in enumerate(said):
            messages += [user(question), assistant("Yes." if event.is_likely(step) else "No.")]
    return messages

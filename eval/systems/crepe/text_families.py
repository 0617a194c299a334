"""Prompts in plain words about one event: after each step in its own conversation, in a dialogue, or all at once.

As in the official scripts, the earlier questions and answers of `cot` and `text_change` stay in the prompt. Nothing
comes before the first step, so no prompt can say that it changes something. With `structure=independent`, the start
is asked about too, and each step of `cot` on its own. docs/reference/systems/crepe.md has the table of the families.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from eval.systems.asker import Asker
from eval.systems.conversations import exchanges, system, wording
from eval.systems.crepe import family, parse
from eval.systems.crepe.family import Demonstration, Labels, Request, Turn
from eval.systems.crepe.gold import LABELS, MORE, EntityChange, Procedure
from eval.systems.crepe.parse import Answer

WORDING: Any = wording("crepe/wording")
_TOKENS = {"text": 12, "text_change": 12, "yes_no": 12, "chat": 12, "cot": 256, "self_ask": 200, "text_at_once": 16}
_INDEPENDENT_COT_TOKENS = 160
_Changes = Sequence[Sequence[EntityChange]]


def ask_texts(request: Request, asker: Asker) -> dict[str, Answer]:
    """Ask about each event and step, and read the labels."""
    opening = [system(_texts(request)["system"]), *exchanges(_demonstrated(request))]
    turns = {
        name: _turns(request, procedure, event, request.states.get(procedure.id))
        for procedure in request.procedures
        for name, event in zip(family.event_names(procedure), procedure.events, strict=True)
    }
    tokens = _TOKENS[request.prompt]
    if request.prompt == "text_at_once":
        tokens *= 1 + max(len(one.steps) for one in request.procedures)
    if request.prompt == "cot" and request.independent:
        tokens = _INDEPENDENT_COT_TOKENS
    if request.prompt in ("text_change", "chat") or (request.prompt == "cot" and not request.independent):
        replies = family.hold(request, asker, opening, turns, tokens)
    else:
        first, at_once = _first(request), request.prompt == "text_at_once"
        chats = [
            request.conversation(name if at_once else f"{name}/step{step}", opening, turn)
            for name, own in turns.items()
            for step, turn in enumerate(own, start=first)
        ]
        if request.by_likelihood:
            outputs = iter(asker.choose("answers", chats, request.style))
        else:
            outputs = iter(asker.ask("answers", chats, max_new_tokens=tokens, style=request.style))
        replies = {name: [next(outputs) for _ in own] for name, own in turns.items()}
    steps = {name: len(one.steps) for one in request.procedures for name in family.event_names(one)}
    return family.answers_by_event(request, lambda name: _read(request, replies[name], steps[name]))


def _texts(request: Request) -> Any:
    own = WORDING["independent"].get(request.prompt) if request.independent else None
    return own or WORDING[request.prompt]


def _first(request: Request) -> int:
    """Return the first step that is asked about; 0 is before the first one."""
    return 0 if request.independent and request.prompt != "cot" else 1


def _turns(
    request: Request, about: Procedure | Demonstration, event: str, changes: _Changes | None, *, solved: bool = False
) -> list[Turn]:
    """Return the questions about an event, in both views; `solved` in a demonstration, which has no follow-ups."""
    texts, steps = _texts(request), about.steps
    if request.prompt == "chat":
        start = texts["start"].format(goal=about.goal, event=event)
        turns = [(texts["turn"].format(step=step), texts["hidden_turn"]) for step in steps]
        if request.independent:
            return [("\n".join([start, texts["before"]]),) * 2, *turns]
        return [(f"{start}\n{turns[0][0]}", f"{start}\n{turns[0][1]}"), *turns[1:]]
    told = {"goal": about.goal, "event": event, "clause": clause(event)}
    if request.prompt == "text_at_once":
        views = (steps, [WORDING["not_shown"]] * len(steps))
        listed = ["\n".join(f"{n}. {step}" for n, step in enumerate(view, start=1)) for view in views]
        return [(texts["user"].format(steps=listed[0], **told), texts["user"].format(steps=listed[1], **told))]
    follow_up = request.prompt == "self_ask" and not request.independent
    hidden = texts["user"].format(**told, **dict.fromkeys(("steps", "before", "step"), WORDING["not_shown"]))
    turns = []
    for step in range(_first(request), len(steps) + 1):
        question = texts["user"].format(**told, **_so_far(request, steps, step, None if follow_up else changes))
        if follow_up and changes is not None and not solved:
            given = WORDING["self_ask"]["given"]
            answered = ((change, _yes_or_no(change.change == LABELS[MORE])) for change in changes[step - 1])
            question = "\n".join([question, *(given.format(**vars(change), answer=said) for change, said in answered)])
        turns.append((question, hidden))
    return turns


def _so_far(request: Request, steps: Sequence[str], step: int, changes: _Changes | None) -> dict[str, str]:
    """Return the first steps: all of them, those before the last of them, and the last."""
    noted = list(steps)
    for place, own in enumerate(changes or ()):
        states = [f"{one.entity}: {'' if one.change == LABELS[MORE] else 'not '}{one.attribute}" for one in own]
        noted[place] += f" ({'; '.join(states)})" if states else ""
    before = " ".join(noted[: max(step - 1, 0)]) or WORDING["start"]
    if request.prompt == "yes_no":  # as in the official script for T5
        before = " ".join([WORDING["start"], *steps[: step - 1]])
    return {
        "steps": " ".join(noted[:step]) or WORDING["nothing_done"],
        "before": before,
        "step": steps[step - 1] if step else "",
    }


def clause(event: str) -> str:
    """Return an event's sentence as part of a question: without its full stop, in lower case at the start."""
    text = event.strip().removesuffix(".")
    found = re.match(r"\w+", text)
    first = found[0] if found else ""
    stays = first == "I" or (len(first) > 1 and first.isupper())
    return text if stays else text[:1].lower() + text[1:]


def _read(request: Request, replies: Sequence[str], steps: int) -> Labels:
    if request.prompt == "text_at_once":
        return parse.changes_from_first(parse.read_lettered_levels(replies[0], steps), parse.LIKELY)
    if request.prompt in ("cot", "text_change"):
        return list(map(parse.read_change, replies))
    if request.prompt in ("chat", "yes_no"):
        levels = list(map(parse.read_yes_or_no, replies))
    else:
        levels = list(map(parse.read_level if request.independent else parse.read_likely, replies))
    return parse.changes_of(levels) if request.independent else parse.changes_from_first(levels)


def _demonstrated(request: Request) -> list[tuple[str, str]]:
    """Return the questions about each demonstration's event with their answers."""
    pairs = []
    for shown in request.demonstrations:
        event, changes = shown.events[0], shown.entity_changes if request.entities == "gold" else None
        turns = _turns(request, shown, event.event, changes, solved=True)
        steps = range(_first(request), len(shown.steps) + 1)
        answers = [_SOLVED[request.prompt](request, event, step) for step in steps]
        if request.prompt == "text_at_once":
            answers = ["\n".join(answers)]
        pairs += [(question, answer) for (question, _), answer in zip(turns, answers, strict=True)]
    return pairs


def _level(request: Request, event: family.DemonstrationEvent, step: int) -> str:
    return "very " * request.independent + ("likely" if event.is_likely(step) else "unlikely")


def _follow_ups(request: Request, event: family.DemonstrationEvent, step: int) -> str:
    text: str = _texts(request)["assistant"].format(
        ask=event.ask,
        state_holds=_yes_or_no(event.holds[step]),
        link=event.link,
        event_holds=_yes_or_no(event.is_likely(step)),
        level=_level(request, event, step),
    )
    return text


def _yes_or_no(value: bool) -> str:
    return "Yes." if value else "No."


_SOLVED: dict[str, Callable[[Request, family.DemonstrationEvent, int], str]] = {
    "text": _level,
    "text_change": lambda _, event, step: f'"{LABELS[event.label(step)]}"',
    "text_at_once": lambda _, event, step: f"Step {step}: {parse.LETTERED[0 if event.is_likely(step) else 3]}",
    "cot": lambda _, event, step: WORDING["cot"]["assistant"].format(
        because=event.because, state=event.state(step), label=LABELS[event.label(step)]
    ),
    "self_ask": _follow_ups,
    "yes_no": lambda _, event, step: family.YES_NO[not event.is_likely(step)],
    "chat": lambda _, event, step: _yes_or_no(event.is_likely(step)),
}

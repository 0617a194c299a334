"""Asking a model the three tasks, pass by pass: each step is asked with the answers to those before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.openpi2.gold import Procedure
from eval.systems.openpi2.parse import parse_states
from eval.systems.openpi2.predictions import StatePair
from eval.systems.openpi2.states_scorer import GoldState, states_by_step
from eval.systems.openpi2.tracking_prompts import (
    Form,
    Listing,
    listing_prompt,
    states_chat_prompt,
    states_text_prompt,
)

DATASET = "openpi2"
_LISTING_TOKENS = 200  # as the official scripts ask for
_STATES_TOKENS = 64


def ask_listing(
    asker: Asker,
    task: Listing,
    form: Form,
    procedures: Iterable[Procedure],
    *,
    temperature: float = 0.0,
    seed: int = 0,
    name: str = "",
) -> dict[str, list[str]]:
    """The reply to each step of each procedure.

    Args:
        name: of the passes, before their step; the task's where empty.
    """
    replies: dict[str, list[str]] = {procedure.id: [] for procedure in procedures}
    by_id = {procedure.id: procedure for procedure in procedures}
    for place in range(max((len(procedure.steps) for procedure in by_id.values()), default=0)):
        left = [procedure for procedure in by_id.values() if place < len(procedure.steps)]
        asked = [
            Conversation(
                DATASET,
                f"{procedure.id}/{place + 1}",
                listing_prompt(task, form, procedure, replies[procedure.id]),
                listing_prompt(task, form, procedure, replies[procedure.id], hidden=True),
            )
            for procedure in left
        ]
        outputs = asker.ask(
            f"{name or task}-step{place + 1}",
            asked,
            max_new_tokens=_LISTING_TOKENS,
            temperature=temperature,
            seed=seed,
        )
        for procedure, output in zip(left, outputs, strict=True):
            replies[procedure.id].append(_ended(output, form, task))
    return replies


def ask_states(
    asker: Asker, form: Form, procedures: Mapping[str, Procedure], *, temperature: float = 0.0, seed: int = 0
) -> dict[str, list[list[StatePair]]]:
    """Predicted states of each gold change, by step of each procedure (the ranked form, with raw mentions)."""
    changes = {key: states_by_step(procedure) for key, procedure in procedures.items()}
    ask = _ask_states_by_turns if form == "chat" else _ask_states_in_line
    replies = ask(asker, procedures, changes, temperature, seed)
    predictions: dict[str, list[list[StatePair]]] = {}
    for key, steps in changes.items():
        answers = iter(replies[key])
        predictions[key] = [
            [
                StatePair(" | ".join(state.entity), " | ".join(state.attribute), *parse_states(next(answers)))
                for state in states
            ]
            for states in steps
        ]
    return predictions


def _ask_states_by_turns(
    asker: Asker,
    procedures: Mapping[str, Procedure],
    changes: Mapping[str, Sequence[Sequence[GoldState]]],
    temperature: float,
    seed: int,
) -> dict[str, list[str]]:
    questions = [
        (key, place, number, state)
        for key, steps in changes.items()
        for place, states in enumerate(steps)
        for number, state in enumerate(states)
    ]
    asked = [
        Conversation(
            DATASET,
            f"{key}/{place + 1}/{number + 1}",
            states_chat_prompt(procedures[key], place, state),
            states_chat_prompt(procedures[key], place, state, hidden=True),
            group=key,
        )
        for key, place, number, state in questions
    ]
    outputs = asker.ask("states", asked, max_new_tokens=_STATES_TOKENS, temperature=temperature, seed=seed)
    replies: dict[str, list[str]] = {key: [] for key in changes}
    for (key, *_), output in zip(questions, outputs, strict=True):
        replies[key].append(output)
    return replies


def _ask_states_in_line(
    asker: Asker,
    procedures: Mapping[str, Procedure],
    changes: Mapping[str, Sequence[Sequence[GoldState]]],
    temperature: float,
    seed: int,
) -> dict[str, list[str]]:
    replies: dict[str, list[str]] = {key: [] for key in changes}
    counts = {key: sum(map(len, steps)) for key, steps in changes.items()}
    for number in range(max(counts.values(), default=0)):
        left = [key for key, count in counts.items() if number < count]
        asked = [
            Conversation(
                DATASET,
                f"{key}/{number + 1}",
                states_text_prompt(procedures[key], changes[key], replies[key]),
                states_text_prompt(procedures[key], changes[key], replies[key], hidden=True),
            )
            for key in left
        ]
        outputs = asker.ask(
            f"states-{number + 1}", asked, max_new_tokens=_STATES_TOKENS, temperature=temperature, seed=seed
        )
        for key, output in zip(left, outputs, strict=True):
            replies[key].append(_ended(output, "text", "states"))
    return replies


def _ended(output: str, form: Form, task: str) -> str:
    """What belongs to this answer: of a continued text its line, or the lines up to the next step."""
    if form == "chat":
        return output.strip()
    if task == "complete":
        return output.split("Step:", maxsplit=1)[0].strip()
    return output.strip().split("\n", maxsplit=1)[0].strip()

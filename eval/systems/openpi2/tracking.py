"""Prompts of schemata, states and complete sentences: a demonstration, then the procedure step by step.

A prompt has turns, or is one text to be continued. It is built in two views. The imagined view leaves out goal and
steps of the procedure, and with them the answers to earlier steps; the demonstration stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, system, turns, wording
from eval.systems.flat.openpi2 import ANSWERS
from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    GoldState,
    Procedure,
    read_by_step,
    read_clustered,
    sentence,
)
from eval.systems.openpi2.task import Form, Task, conversation, drawn, sampling, scorer_of
from eval.systems.system import SystemCall

_WORDING: Any = wording("openpi2/prompts/tracking")
Listing = Literal["schemata", "complete"]
_LISTING_TOKENS = 200  # as the official scripts ask for


def ask_listing(
    asker: Asker, task: Listing, form: Form, procedures: Mapping[str, Procedure], *, name: str = "", **sampling: Any
) -> dict[str, list[str]]:
    """Return the reply to each step of each procedure, each asked with the replies to the steps before it.

    Args:
        name: of the passes, before their step; the task's if it is empty.
    """
    return ask_by_turns(
        asker,
        f"{name or task}-step{{}}",
        {key: len(procedure.steps) for key, procedure in procedures.items()},
        lambda key, replies: conversation(
            f"{key}/{len(replies) + 1}", listing_prompt, task, form, procedures[key], replies
        ),
        read=lambda output: cut_answer(output, form, task),
        max_new_tokens=_LISTING_TOKENS,
        **sampling,
    )


Listed = Mapping[str, Sequence[Any]]  # by procedure, what is listed at each step


class ListingTask(Task[Mapping[str, Procedure], Listed]):
    """A task that lists something at each step.

    Attributes:
        schema: what a file of predictions has for one step.
    """

    kind: ClassVar[Listing]
    official = (EXPANDED, CLUSTERED)  # the expanded file also has the clusters without paraphrases
    schema: ClassVar[Any]

    def parse(self, reply: str) -> Any:
        """Return what a reply lists."""
        raise NotImplementedError

    def read_gold(self, path: Path, options: Any) -> Mapping[str, Procedure]:
        return read_clustered(path)

    def ask(self, gold: Mapping[str, Procedure], call: SystemCall, asker: Asker) -> Listed:
        scorer_of(call.options)
        replies = ask_listing(asker, self.kind, call.options.prompt, drawn(call, gold), **sampling(call))
        return {key: list(map(self.parse, said)) for key, said in replies.items()}

    def read_predictions(self, path: Path, gold: Mapping[str, Procedure], options: Any) -> Listed:
        return read_by_step(path, {key: one.steps for key, one in gold.items()}, self.schema)

    def template(self, gold: Mapping[str, Procedure], options: Any) -> Iterator[dict[str, Any]]:
        empty = dict.fromkeys(ANSWERS[self.kind], "")
        for key, procedure in gold.items():
            yield from ({"procedure": key, "step": step, **empty} for step in range(1, len(procedure.steps) + 1))


def cut_answer(output: str, form: Form, task: str) -> str:
    """Return what belongs to this answer: in a continued text its line, or the lines up to the next step."""
    if form == "chat":
        return output.strip()
    if task == "complete":
        return output.split("Step:", maxsplit=1)[0].strip()
    return output.strip().split("\n", maxsplit=1)[0].strip()


def listing_prompt(
    task: Listing, form: Form, procedure: Procedure, replies: Sequence[str], *, hidden: bool = False
) -> Messages:
    """Ask what changes in the step after those that have been answered (`replies`)."""
    steps = procedure.steps[: len(replies) + 1]
    shown = [_WORDING["step"].format(step=step) for step in steps]
    if hidden:
        shown, replies = [_WORDING["hidden_step"]], ()
    if form == "text":
        return turns(_listing_text(task, _goal(procedure.goal, hidden), shown, replies))
    texts = [text for pair in zip(shown, replies, strict=False) for text in pair]
    return [
        *_demonstrated(task, [(step, _listed(task, changes)) for step, changes in _demonstration()]),
        *turns(_request(task, _goal(procedure.goal, hidden)), _WORDING[task]["accept"], *texts, shown[-1]),
    ]


def states_chat_prompt(procedure: Procedure, place: int, state: GoldState, *, hidden: bool = False) -> Messages:
    """Ask for the states of one change at a step, counted from 0 (tables 12 and 14's form)."""
    own = _WORDING["states"]
    solved = [
        (_question(step, attribute, entity), own["answer"].format(before=before, after=after))
        for step, changes in _demonstration()
        for entity, attribute, before, after in changes
    ]
    step = _WORDING["hidden_step"] if hidden else _WORDING["step"].format(step=procedure.steps[place])
    question = _question(step, state.attribute[0], state.entity[0])
    return [
        *_demonstrated("states", solved),
        *turns(_request("states", _goal(procedure.goal, hidden)), own["accept"], question),
    ]


def states_text_prompt(
    procedure: Procedure, changes: Sequence[Sequence[GoldState]], replies: Sequence[str], *, hidden: bool = False
) -> Messages:
    """Ask for the next change of a procedure as a line to be continued (table 13), after the answers so far.

    Args:
        changes: gold changes by step.
        replies: to the procedure's first changes, in order.
    """
    goal = _goal(procedure.goal, hidden)
    if hidden:
        asked = [state for states in changes for state in states][len(replies)]
        lines = [_WORDING["hidden_step"], _begun(asked)]
    else:
        lines = _lines_so_far(procedure, changes, replies)
    return turns("\n\n".join((_demonstration_text("states"), "\n".join((_text_head("states", goal), *lines)))))


def _lines_so_far(procedure: Procedure, changes: Sequence[Sequence[GoldState]], replies: Sequence[str]) -> list[str]:
    lines, answers = [], iter(replies)
    for step, states in zip(procedure.steps, changes, strict=True):
        lines.append(_WORDING["step"].format(step=step))
        for state in states:
            reply = next(answers, None)
            if reply is None:
                return [*lines, _begun(state)]
            lines.append(f"{_begun(state)} {reply}")
    return lines


def _begun(state: GoldState) -> str:
    return f"- {state.attribute[0]} of {state.entity[0]} was"


def _listing_text(task: Listing, goal: str, steps: Sequence[str], replies: Sequence[str]) -> str:
    cue = _WORDING[task]["text_cue"]
    lines = []
    for place, step in enumerate(steps):
        reply = replies[place] if place < len(replies) else ""
        lines += [step, *filter(None, [" ".join(filter(None, (cue, reply)))])]
    return "\n\n".join((_demonstration_text(task), "\n".join((_text_head(task, goal), *lines))))


def _demonstration_text(task: str) -> str:
    lines = [_text_head(task, _goal(_WORDING["demonstration"]["goal"], hidden=False))]
    for step, changes in _demonstration():
        listed = _listed("complete" if task == "states" else task, changes)
        lines += [step, " ".join(filter(None, (_WORDING[task].get("text_cue", ""), listed)))]
    return "\n".join(lines)


def _text_head(task: str, goal: str) -> str:
    return " ".join(filter(None, (goal, _WORDING[task]["text_request"])))


def _demonstrated(task: str, solved: Sequence[tuple[str, str]]) -> Messages:
    texts = [text for pair in solved for text in pair]
    request = _request(task, _goal(_WORDING["demonstration"]["goal"], hidden=False))
    return [
        system(_WORDING[task]["system"]),
        *turns(request, _WORDING[task]["accept"], *texts, _WORDING["next"], _WORDING["agreed"]),
    ]


def _demonstration() -> list[tuple[str, list[Sequence[str]]]]:
    steps: list[dict[str, Any]] = _WORDING["demonstration"]["steps"]
    return [(_WORDING["step"].format(step=step["text"]), step["changes"]) for step in steps]


def _listed(task: str, changes: Sequence[Sequence[str]]) -> str:
    if task == "complete":
        return "\n".join(
            f"- {sentence(attribute, entity, before, after)}" for entity, attribute, before, after in changes
        )
    attributes: dict[str, list[str]] = {}
    for entity, attribute, *_ in changes:
        attributes.setdefault(entity, []).append(attribute)
    return ", ".join(f"{entity} ({', '.join(names)})" for entity, names in attributes.items())


def _goal(goal: str, hidden: bool) -> str:
    return "" if hidden else _WORDING["goal"].format(goal=goal.lower())


def _request(task: str, goal: str) -> str:
    return " ".join(filter(None, (goal, _WORDING[task]["request"])))


def _question(step: str, attribute: str, entity: str) -> str:
    text: str = _WORDING["states"]["question"].format(step=step, attribute=attribute, entity=entity)
    return text

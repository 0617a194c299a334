"""Prompts of schemata, states and complete sentences: a demonstration, then the procedure step by step.

A prompt has turns, or is one text to be continued. It is built in two views: the imagined one leaves out what has to
be read, which is goal and steps of the procedure, and with them the answers to earlier steps. The demonstration stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from d2e_sft.data.chat_template import Messages
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, system, turns, wording
from eval.systems.flat.openpi2 import COLUMNS
from eval.systems.json_file import Node
from eval.systems.openpi2.gold import (
    GoldState,
    Procedure,
    clustered_file,
    count_steps,
    official_text,
    read_by_step,
    read_clustered,
    sentence,
)
from eval.systems.openpi2.task import (
    Form,
    OpenPIOptions,
    ScorerOptions,
    Task,
    conversation,
    drawn,
    sampling,
    scorer_of,
)
from eval.systems.system import SystemCall, SystemResult

_WORDING: Any = wording("openpi2/prompts/tracking")
Listing = Literal["schemata", "complete"]
_LISTING_TOKENS = 200  # as the official scripts ask for


def ask_listing(
    asker: Asker, task: Listing, form: Form, procedures: Mapping[str, Procedure], *, name: str = "", **sampling: Any
) -> dict[str, list[str]]:
    """The reply to each step of each procedure, each asked with the replies to the steps before it.

    Args:
        name: of the passes, before their step; the task's where empty.
    """
    return ask_by_turns(
        asker,
        f"{name or task}-step{{}}",
        count_steps(procedures),
        lambda key, replies: conversation(
            f"{key}/{len(replies) + 1}", listing_prompt, task, form, procedures[key], replies
        ),
        read=lambda output: cut_answer(output, form, task),
        max_new_tokens=_LISTING_TOKENS,
        **sampling,
    )


def listing_task(
    name: Listing,
    parse: Callable[[str], Any],
    read: Callable[[Node], Any],
    score: Callable[..., SystemResult],
) -> Task:
    """The task of listing something at each step.

    Args:
        parse: what a reply lists.
        read: what a file of predictions has for one step.
        score: gold procedures, predictions and the scorer of BERTScore in, scores and tables out.
    """

    def run(call: SystemCall, asker: Asker) -> SystemResult:
        own: OpenPIOptions = call.options
        gold, scorer = read_clustered(clustered_file(call.data, f"task={name}")), scorer_of(own)
        replies = ask_listing(asker, name, own.prompt, drawn(call, gold), **sampling(call))
        predictions = {key: list(map(parse, said)) for key, said in replies.items()}
        return replace(score(gold, predictions, scorer), files={f"{name}.json": official_text(predictions)})

    def score_file(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
        procedures = read_clustered(gold)
        return score(procedures, read_by_step(predictions, count_steps(procedures), read), scorer_of(options))

    def template(gold: Path) -> Iterator[dict[str, Any]]:
        empty = {column: "" for column in COLUMNS[name] if column not in ("procedure", "step")}
        for key, count in count_steps(read_clustered(gold)).items():
            yield from ({"procedure": key, "step": step, **empty} for step in range(1, count + 1))

    return Task(run, {name: score_file}, {name: template})


def cut_answer(output: str, form: Form, task: str) -> str:
    """What belongs to this answer: of a continued text its line, or the lines up to the next step."""
    if form == "chat":
        return output.strip()
    if task == "complete":
        return output.split("Step:", maxsplit=1)[0].strip()
    return output.strip().split("\n", maxsplit=1)[0].strip()


def listing_prompt(
    task: Listing, form: Form, procedure: Procedure, replies: Sequence[str], *, hidden: bool = False
) -> Messages:
    """What changes in the step after those that have been answered.

    Args:
        replies: to the steps so far.
        hidden: the imagined view.
    """
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
    """The states of one change at a step (counted from 0), asked by itself (tables 12 and 14's form)."""
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
    """The next change of a procedure as a line to be continued (table 13), after the answers so far.

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

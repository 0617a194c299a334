"""Prompts of schemata, states and complete sentences: a demonstration, then the procedure step by step.

A prompt has turns, or in other forms than chat is one text to be continued. The imagined view leaves out the
procedure's goal and steps, and so the answers to earlier steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal

from d2e_sft.data.chat_template import Continuation, Form, Messages
from eval.systems.asking import Asker, ask_by_turns, system, turns, wording
from eval.systems.benchmark import BenchmarkCall
from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    GoldState,
    Procedure,
    Procedures,
    empty_lines,
    read_by_step,
    read_clustered,
    sentence,
)
from eval.systems.openpi2.task import OpenPITask, conversation, drawn, sampling, scorer_of

_WORDING: Any = wording("openpi2/prompts/tracking")
Listing = Literal["schemata", "complete"]
_LISTING_TOKENS = 200  # as the official scripts ask for
BEGUN = Continuation(cue=None, stops=("\n\n", "\nStep:"))  # the texts here end where the answer begins


def ask_listing(
    asker: Asker, task: Listing, form: Form, procedures: Procedures, *, name: str = "", **sampling: Any
) -> dict[str, list[str]]:
    """Return the reply to each step, asked with the replies before it; `name` is of the passes [the task's]."""
    return ask_by_turns(
        asker,
        f"{name or task}-step{{}}",
        {key: len(procedure.steps) for key, procedure in procedures.items()},
        lambda key, said: conversation(f"{key}/{len(said) + 1}", listing_prompt, task, form, procedures[key], said),
        read=lambda output: cut_answer(output, form, task),
        max_new_tokens=_LISTING_TOKENS,
        style=BEGUN,
        **sampling,
    )


Listed = Mapping[str, Sequence[Any]]  # by procedure, what is listed at each step


class ListingTask(OpenPITask[Procedures, Listed]):
    """A task that lists something at each step; `schema` is what a file of predictions has for one step."""

    kind: ClassVar[Listing]
    # The expanded file also has the clusters without paraphrases.
    official = (EXPANDED, CLUSTERED)
    schema: ClassVar[Any]

    def parse(self, reply: str) -> Any:
        raise NotImplementedError

    def read_gold(self, path: Path, options: Any) -> Procedures:
        return read_clustered(path)

    def ask(self, gold: Procedures, call: BenchmarkCall, asker: Asker) -> Listed:
        scorer_of(call.options)
        replies = ask_listing(asker, self.kind, call.form, drawn(call, gold), **sampling(call))
        return {key: list(map(self.parse, said)) for key, said in replies.items()}

    def read_predictions(self, path: Path, gold: Procedures, options: Any) -> Listed:
        return read_by_step(path, {key: procedure.steps for key, procedure in gold.items()}, self.schema)

    def template(self, gold: Procedures, options: Any) -> Iterator[dict[str, Any]]:
        return empty_lines(self.kind, gold)


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
    """Return the messages that ask what changes in the next step; `replies` answer the steps before it."""
    shown = [_WORDING["step"].format(step=step) for step in procedure.steps[: len(replies) + 1]]
    if hidden:
        shown, replies = [_WORDING["hidden_step"]], ()
    pairs = list(zip_longest(shown, replies, fillvalue=""))
    goal = _goal(procedure.goal, hidden)
    if form != "chat":
        cue = _WORDING[task]["text_cue"]
        return _text_prompt(task, goal, [line for step, said in pairs for line in (step, _joined(cue, said)) if line])
    solved = [text for step, changes in _demonstration() for text in (step, _listed(task, changes))]
    return _chat_prompt(task, goal, solved, list(chain.from_iterable(pairs))[:-1])


def states_chat_prompt(procedure: Procedure, place: int, state: GoldState, *, hidden: bool = False) -> Messages:
    """Ask for the states of one change at a step, counted from 0 (tables 12 and 14's form)."""
    own = _WORDING["states"]
    solved = []
    for step, changes in _demonstration():
        for entity, attribute, before, after in changes:
            question = own["question"].format(step=step, attribute=attribute, entity=entity)
            solved += [question, own["answer"].format(before=before, after=after)]
    step = _WORDING["hidden_step"] if hidden else _WORDING["step"].format(step=procedure.steps[place])
    question = own["question"].format(step=step, attribute=state.attribute[0], entity=state.entity[0])
    return _chat_prompt("states", _goal(procedure.goal, hidden), solved, [question])


def states_text_prompt(
    procedure: Procedure, changes: Sequence[Sequence[GoldState]], replies: Sequence[str], *, hidden: bool = False
) -> Messages:
    """Ask for the next change of a procedure as a line to be continued (table 13).

    `changes` are the gold ones by step, `replies` those to the first of them, in order.
    """
    lines: list[str] = []
    answers = iter(replies)
    asked: str | None = None
    for step, states in zip(procedure.steps, changes, strict=True):
        if asked is None:
            lines.append(_WORDING["step"].format(step=step))
        for state in states if asked is None else ():
            begun = f"- {state.attribute[0]} of {state.entity[0]} was"
            reply = next(answers, None)
            if reply is None:
                asked = begun
                break
            lines.append(f"{begun} {reply}")
    assert asked is not None
    shown = [_WORDING["hidden_step"]] if hidden else lines
    return _text_prompt("states", _goal(procedure.goal, hidden), [*shown, asked])


def _chat_prompt(task: str, goal: str, solved: Sequence[str], texts: Sequence[str]) -> Messages:
    """Return the demonstration, then the request about a procedure, as turns."""
    own = _WORDING[task]
    first, second = (_joined(text, own["request"]) for text in (_goal(_WORDING["demonstration"]["goal"]), goal))
    closing = (_WORDING["next"], _WORDING["agreed"])
    return [system(own["system"]), *turns(first, own["accept"], *solved, *closing, second, own["accept"], *texts)]


def _text_prompt(task: str, goal: str, lines: Sequence[str]) -> Messages:
    """Return the demonstration, then lines about a procedure, as one text to be continued."""
    own = _WORDING[task]
    solved = []
    for step, changes in _demonstration():
        listed = _listed("complete" if task == "states" else task, changes)
        solved += [step, _joined(own.get("text_cue", ""), listed)]
    parts = ((_goal(_WORDING["demonstration"]["goal"]), solved), (goal, lines))
    return turns("\n\n".join("\n".join((_joined(head, own["text_request"]), *below)) for head, below in parts))


def _demonstration() -> list[tuple[str, list[Sequence[str]]]]:
    steps: list[dict[str, Any]] = _WORDING["demonstration"]["steps"]
    return [(_WORDING["step"].format(step=step["text"]), step["changes"]) for step in steps]


def _listed(task: str, changes: Sequence[Sequence[str]]) -> str:
    if task == "complete":
        return "\n".join(f"- {sentence(name, entity, before, after)}" for entity, name, before, after in changes)
    attributes: dict[str, list[str]] = {}
    for entity, attribute, *_ in changes:
        attributes.setdefault(entity, []).append(attribute)
    return ", ".join(f"{entity} ({', '.join(names)})" for entity, names in attributes.items())


def _goal(goal: str, hidden: bool = False) -> str:
    return "" if hidden else _WORDING["goal"].format(goal=goal.lower())


def _joined(*texts: str) -> str:
    return " ".join(filter(None, texts))

"""Procedures, that is a goal and its steps: CREPE, OpenPI and OpenPI2.0.

CREPE (Zhang et al., Findings of EACL 2023) asks what a step does to the likelihood of an event. Each (event, step)
pair is a choice among three labels: 727 rows of dev and 1,520 of the test. The official files list changes only, so an
event that a step does not name is equally likely after it. Block 0 is the start.

OpenPI (Tandon et al., EMNLP 2020) asks which attributes of which entities a step changes. CREPE's paper trains a model
on the 3,216 training steps and takes the states that it predicts (section 5.3). An answer lists all changes of a step.

OpenPI2.0 (Zhang et al., EACL 2024) asks for an attribute of an entity before and after a step. The rows come from the
ranked files, which exist for all three splits (dev 1,311 rows, test 3,091). Each change that people named at a step is
a question, and the states that they gave are its answers. The benchmark's own files (clusters, salience) cover the dev
split only.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from data_builders.raw.source import Job, SplitSamples, source
from data_builders.sources.reading import Filter, join_answers, keep_if, keep_unseen, read_splits, reader
from data_builders.sources.rows import Draft, Form, RawInput, RawObject, RawRow, Row, Text, clean

_FACTS = Path(__file__).with_name


def goal_and_steps(goal: str, steps: Sequence[str]) -> list[str]:
    """Return the lines of a context about a procedure: its goal, and each step, numbered."""
    return [f"Goal: {goal}", *(f"{number}. {step}" for number, step in enumerate(steps, start=1))]


# CREPE

_Change = Literal["more likely", "less likely", "equally likely"]


class _Step(RawObject):
    type: Literal["step"]
    step: Text


class _Entity(RawObject):
    type: Literal["entity"]


class _Event(RawObject):
    type: Literal["event"]
    event: Text
    change: _Change


_Item = Annotated[_Step | _Entity | _Event, Field(discriminator="type")]


def _one_step(block: list[_Item]) -> list[_Item]:
    if sum(item.type == "step" for item in block) != 1:
        raise ValueError("expected exactly one step")
    return block


class _Crepe(RawRow):
    goal: Text
    steps: list[Annotated[list[_Item], AfterValidator(_one_step)]] = Field(min_length=1)

    @field_validator("steps", mode="before")
    @classmethod
    def _without_start(cls, blocks: Any) -> Any:
        return blocks[1:] if isinstance(blocks, list) else blocks


def _crepe(procedure: _Crepe) -> Iterator[Draft]:
    """One draft for each step and event, with the change of the event after the step."""
    steps = [item.step for block in procedure.steps for item in block if isinstance(item, _Step)]
    lines = goal_and_steps(procedure.goal, steps)
    changes = [{item.event: item.change for item in block if isinstance(item, _Event)} for block in procedure.steps]
    events = list(dict.fromkeys(event for changed in changes for event in changed))
    for step, changed in enumerate(changes, start=1):
        for number, event in enumerate(events):
            yield procedure.draft(
                id=f"{procedure.key}-{step}-{number}",
                relation="causal",
                context="\n".join(lines[: step + 1]),
                question=f"Compared with the moment before the latest step, how likely is this event now? {event}",
                options=get_args(_Change),
                answers=[changed.get(event, "equally likely")],
                meta={**_place(procedure, step, len(steps)), "event": number, "evidence": [lines[0], lines[step]]},
                record_number=False,
            )


def _place(procedure: RawRow, step: int, steps: int) -> dict[str, object]:
    return {"procedure": procedure.key, "step": step, "steps": steps}


CREPE = source(_FACTS("crepe"), reader(Form(_Crepe, _crepe, RawInput.json_members)))

# OpenPI

_END = "Now, what happens?"


def _without_end(question: str) -> str:
    if not question.endswith(_END) or not (steps := question.removesuffix(_END).strip()):
        raise ValueError(f"expected the steps so far and {_END!r}")
    return steps


class _OpenPI(RawRow):
    id: Text
    question: Annotated[Text, AfterValidator(_without_end)]
    answers: list[Text]


def _openpi(row: _OpenPI) -> Draft:
    page, _, step = row.id.partition("||")
    return row.draft(
        relation="temporal",
        context=row.question,
        question="What does the latest step change?",
        answers=["\n".join(f"- {change}" for change in row.answers) or "There will be no change."],
        meta={"page": page, "step": step},
    )


def _read_openpi(job: Job) -> SplitSamples:
    def rows(raw: RawInput) -> Iterator[Row]:
        """Each step with the answers of its id, which are in a second file; steps without any are bad rows."""
        answers = job.input(f"{raw.split}_answers", raw.split).json_lines()
        by_id = {str(row.fields.get("id")): row.fields for row in answers}  # an id that is no text is bad
        steps = raw.json_lines()
        return (Row(row.number, {**by_id.get(str(row.fields.get("id")), {}), **row.fields}) for row in steps)

    return read_splits(job, Form(_OpenPI, _openpi, rows))


OPENPI = source(_FACTS("openpi"), _read_openpi)

# OpenPI2.0


def _split_mentions(value: Any) -> Any:
    return [text for text in map(clean, value.split(" | ")) if text] if isinstance(value, str) else value


_Mentions = Annotated[list[str], BeforeValidator(_split_mentions)]  # "water | the liquid" in the file


class _StateChange(RawObject):
    attribute: _Mentions
    before: _Mentions
    after: _Mentions


class _States(RawObject):
    entity: _Mentions
    answers: dict[str, list[_StateChange]]


class _OpenPI2(RawRow):
    goal: Text
    steps: list[Text] = Field(min_length=1)
    states: list[_States]


def _openpi2(procedure: _OpenPI2) -> Iterator[Draft]:
    """One draft for each change, by step and then in the file's order, like the benchmark's questions."""
    lines = goal_and_steps(procedure.goal, procedure.steps)
    text, steps = "\n".join(lines).casefold(), len(procedure.steps)
    for step, state in product(range(1, steps + 1), procedure.states):
        for change in state.answers.get(f"step{step}", ()):
            entity, attribute = (mentions[0] if mentions else "" for mentions in (state.entity, change.attribute))
            yield procedure.draft(
                record_number=False,
                relation="temporal",
                context="\n".join(lines[: step + 1]),
                question=f"What is the {attribute} of {entity} before and after the latest step?",
                answers=[
                    f"{before} before and {after} after" for before, after in product(change.before, change.after)
                ],
                meta={
                    **_place(procedure, step, steps),
                    "entity": entity,
                    "attribute": attribute,
                    "evidence": [lines[0], lines[step]],
                },
                extra={"text": text},
            )


def _merge(rows: Sequence[Draft]) -> Iterator[Draft]:
    """Join the answers of equal changes, and number the questions of each procedure."""
    numbers: Counter[object] = Counter()
    for row in join_answers(rows, lambda row: [row.meta[key] for key in ("procedure", "step", "entity", "attribute")]):
        procedure = row.meta["procedure"]
        yield replace(row, id=f"{procedure}-{numbers[procedure]}")
        numbers[procedure] += 1


_OPENPI2_FILTERS = (
    keep_unseen(
        "procedures of dev and test",
        "a procedure with the same goal and steps is in dev or test",
        lambda row: row.extra["text"],
    ),
    keep_if(
        "changes without a name or a state",
        "entity, attribute, state before or state after is empty",
        lambda row: row.meta["entity"] and row.meta["attribute"] and row.answers,
    ),
    Filter(
        "changes named twice",
        "the same attribute of the same entity at the same step; the states of both are answers of one row",
        lambda rows, _: list(_merge(rows)),
    ),
)

OPENPI2 = source(_FACTS("openpi2"), reader(Form(_OpenPI2, _openpi2, RawInput.json_members), _OPENPI2_FILTERS))

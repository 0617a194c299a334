"""OpenPI2.0 (Zhang et al., EACL 2024): what is an attribute of an entity before and after a step of a procedure?

The rows come from the ranked files, which exist for all three splits (dev 1,311 rows, test 3,091). Each change that
people named at a step is a question, and the states that they gave are its answers. The benchmark's own files
(clusters, salience) cover the dev split only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from data_builders.raw.facts import source
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Draft, clean
from data_builders.sources.filters import Filter, join_answers, keep_if, keep_unseen, reader
from data_builders.sources.rows import Form, RawObject, RawRow, Text
from data_builders.text.texts import goal_and_steps


def _split_mentions(value: Any) -> Any:
    return [text for text in map(clean, value.split(" | ")) if text] if isinstance(value, str) else value


_Mentions = Annotated[list[str], BeforeValidator(_split_mentions)]  # "water | the liquid" in the file


class _Change(RawObject):
    attribute: _Mentions
    before: _Mentions
    after: _Mentions


class _Entity(RawObject):
    entity: _Mentions
    answers: dict[str, list[_Change]]


class _Procedure(RawRow):
    goal: Text
    steps: list[Text] = Field(min_length=1)
    states: list[_Entity]


def _drafts(procedure: _Procedure) -> Iterator[Draft]:
    """One draft for each change, by step and then in the file's order, like the benchmark's questions."""
    lines = goal_and_steps(procedure.goal, procedure.steps)
    text = "\n".join(lines).casefold()
    for step in range(1, len(procedure.steps) + 1):
        for state in procedure.states:
            for change in state.answers.get(f"step{step}", ()):
                entity, attribute = (mentions[0] if mentions else "" for mentions in (state.entity, change.attribute))
                yield Draft(
                    number=procedure.number,
                    record_number=False,
                    relation="temporal",
                    context="\n".join(lines[: step + 1]),
                    question=f"What is the {attribute} of {entity} before and after the latest step?",
                    answers=[f"{one} before and {other} after" for one, other in product(change.before, change.after)],
                    meta={
                        "procedure": procedure.key,
                        "step": step,
                        "steps": len(procedure.steps),
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


FILTERS = (
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

OPENPI2 = source(__file__, reader(Form(_Procedure, _drafts, RawInput.json_members), FILTERS))

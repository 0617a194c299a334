"""Judgements of salience in files, and how well two judges agree.

The judges of procedures 1 to 20 are compared by Pearson's r of each procedure, then the plain mean (paper section 4).
Officially a 0 is appended to both vectors, because r is undefined if one is constant, and a global value outside 0–5
counts as 0 (a local one does not). The corrected score appends nothing, moves any value outside 0–5 to the nearest
bound, and leaves out procedures where r is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, Field, field_validator

from d2e_sft.util.errors import UserError
from eval.systems.files import Row, check_ids, checked
from eval.systems.openpi2.gold import read_official

JUDGED = tuple(map(str, range(1, 21)))
PREDICTED = ("global_salience_pred", "local_salience_pred")
Level = Literal["global", "local"]
LEVELS: tuple[Level, ...] = ("global", "local")
_HIGHEST = 5


class EntitySalience(Row):
    """One entity's salience: in the procedure, and in each step."""

    bounded: ClassVar[bool] = True
    entity: str
    overall: int = Field(validation_alias=AliasChoices(PREDICTED[0], "global_salience"))
    steps: tuple[int, ...] = Field(validation_alias="answers")

    @field_validator("steps", mode="before")
    @classmethod
    def _local(cls, answers: Any) -> Any:
        if not isinstance(answers, dict):
            return answers
        return [_StepSalience.model_validate(step).value for step in answers.values()]


class Count(Row):
    """Numbers without bounds that stand for an entity's salience: votes, or a score."""

    bounded: ClassVar[bool] = False
    entity: str
    overall: float
    steps: tuple[float, ...]


class _StepSalience(Row):
    value: int = Field(validation_alias=AliasChoices(PREDICTED[1], "local_salience"))


class _Judged(Row):
    states: tuple[EntitySalience, ...]


Saliences = Mapping[str, tuple[EntitySalience | Count, ...]]


@dataclass(frozen=True)
class Judges:
    """The first annotator, and by name the others that are compared with this one.

    `goals` are those of the procedures.
    """

    first: Saliences
    others: Mapping[str, Saliences]
    goals: Mapping[str, str]


@dataclass(frozen=True)
class Agreement:
    """The mean r; `by_procedure` has None where it is undefined."""

    mean: float | None
    by_procedure: dict[str, float | None]


def read_salience(path: Path) -> Saliences:
    """Read judgements or predictions of the judged procedures; UserError if the file is damaged or has neither."""
    judged = {key: value for key, value in read_official(path).items() if key in JUDGED}
    return {key: found.states for key, found in checked(dict[str, _Judged], judged, str(path)).items()}


def read_judges(path: Path, second: Path) -> Judges:
    """Read the first annotator's file, the second's if it exists, and what the first file counts.

    These are the votes for an entity and its score in OpenPI, if every state has them (paper figure 3).
    """
    first, content = read_salience(path), read_official(path)
    others: dict[str, Saliences] = {"second annotator": read_salience(second)} if second.is_file() else {}
    for name, key in (("votes", "votes"), ("saliency score", "score")):
        states = [state for number in first for state in content[number]["states"]]
        if all(key in one for state in states for one in (state, *state["answers"].values())):
            counts = {
                number: [
                    {**state, "overall": state[key], "steps": [step[key] for step in state["answers"].values()]}
                    for state in content[number]["states"]
                ]
                for number in first
            }
            others[name] = checked(dict[str, tuple[Count, ...]], counts, str(path))
    return Judges(first, others, {number: str(content[number].get("goal", number)) for number in first})


def check_same_entities(first: Saliences, second: Saliences, path: Path) -> None:
    """Refuse two files that do not judge the same entities and steps in the same order; `path` is the second's."""
    check_ids(path, "procedure", second, first)
    for key, entities in second.items():
        named = [(item.entity, len(item.steps)) for item in entities]
        expected = [(item.entity, len(item.steps)) for item in first[key]]
        if named != expected:
            raise UserError(
                f"{path}: {key}: got the entities {[name for name, _ in named]}; expected those of the gold file, "
                f"{[name for name, _ in expected]}, each with its steps",
                remedy="score predictions for the same file of procedures",
            )


def agreement(first: Saliences, second: Saliences, level: Level, *, official: bool = True) -> Agreement:
    """Return the agreement of two judges on the procedures of the second, by the official script or corrected."""
    by_procedure = {
        key: pearson(_vector(first[key], level, official), _vector(entities, level, official))
        for key, entities in second.items()
    }
    defined = [value for value in by_procedure.values() if value is not None]
    # The official mean of a NaN is NaN: one procedure that is undefined leaves the whole so.
    if not defined or (official and len(defined) < len(by_procedure)):
        return Agreement(None, by_procedure)
    return Agreement(sum(defined) / len(defined), by_procedure)


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's r; None if a vector is constant or has one value."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _vector(entities: Sequence[EntitySalience | Count], level: Level, official: bool) -> list[float]:
    values: list[float] = [
        value for entity in entities for value in ((entity.overall,) if level == "global" else entity.steps)
    ]
    if not all(entity.bounded for entity in entities):
        return [*values, 0] if official else values
    if not official:
        return [min(max(value, 0), _HIGHEST) for value in values]
    if level == "global":
        values = [value if 0 <= value <= _HIGHEST else 0 for value in values]
    return [*values, 0]

"""Salience: how much an entity matters, to a procedure (global) and to a step (local), by a model and by people.

The judges of procedures 1 to 20 are compared by Pearson's r of each procedure, then the plain mean (paper section 4).
Officially a 0 is appended to both vectors, since r is undefined where one is constant, and a global value outside 0–5
counts as 0 (a local one does not). The corrected score appends nothing, takes any value outside 0–5 to the nearest
bound, and leaves out procedures where r is undefined.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import AliasChoices, Field, field_validator

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest, shares
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, system, turns, wording
from eval.systems.json_file import Row, check_ids, checked
from eval.systems.openpi2.gold import Procedure, official_text, read_official, read_procedures
from eval.systems.openpi2.metrics import cell, scored
from eval.systems.openpi2.task import Task, drawn, sampling
from eval.systems.system import SystemCall, SystemResult

HUMAN = "dev-data-reformatted-v4_votes_score_salience_1-20.json"
SECOND_HUMAN = "dev-data-reformatted-v4_votes_salience_1-20_human2.json"
JUDGED = tuple(map(str, range(1, 21)))
PREDICTED = ("global_salience_pred", "local_salience_pred")
Level = Literal["global", "local"]
_HIGHEST = 5
_TOKENS = 64  # a number and one sentence


class EntitySalience(Row):
    """One entity's salience: in the procedure, and in each step."""

    entity: str
    overall: int = Field(validation_alias=AliasChoices(PREDICTED[0], "global_salience"))
    steps: tuple[int, ...] = Field(validation_alias="answers")

    @field_validator("steps", mode="before")
    @classmethod
    def _local(cls, answers: Any) -> Any:
        if not isinstance(answers, dict):
            return answers
        return [_StepSalience.model_validate(step).value for step in answers.values()]


class _StepSalience(Row):
    value: int = Field(validation_alias=AliasChoices(PREDICTED[1], "local_salience"))


class _Judged(Row):
    states: tuple[EntitySalience, ...]


Saliences = Mapping[str, tuple[EntitySalience, ...]]


@dataclass(frozen=True)
class Agreement:
    """The mean r; `by_procedure` has None where it is undefined."""

    mean: float | None
    by_procedure: dict[str, float | None]


def read_salience(path: Path) -> Saliences:
    """Read the salience of the judged procedures, from an official file of judgements or of predictions.

    Raises:
        UserError: the file is missing or damaged, or has neither judgements nor predictions.
    """
    judged = {key: value for key, value in read_official(path).items() if key in JUDGED}
    return {key: found.states for key, found in checked(dict[str, _Judged], judged, str(path)).items()}


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


def first_integer(reply: str) -> int:
    """The first whole number in a reply, 1 where there is none."""
    digits = re.search(r"\d+", reply)
    return int(digits.group()) if digits else 1


def ask_global(
    asker: Asker, procedures: Mapping[str, Procedure], entities: Mapping[str, Sequence[str]], **sampling: Any
) -> dict[str, list[int]]:
    """The salience of each procedure's entities, each asked with the answers to those before it."""
    conversations = {key: (entities[key], _opening(procedure, None)) for key, procedure in procedures.items()}
    replies = _ask_in_turn(asker, "salience-global", conversations, sampling)
    return {key: list(map(first_integer, said)) for key, said in replies.items()}


def ask_local(
    asker: Asker, procedures: Mapping[str, Procedure], entities: Mapping[str, Sequence[Sequence[str]]], **sampling: Any
) -> dict[str, list[list[int]]]:
    """The salience of some entities at each step of their procedure, asked likewise."""
    conversations = {
        f"{key}/{place + 1}": (entities[key][place], _opening(procedure, step))
        for key, procedure in procedures.items()
        for place, step in enumerate(procedure.steps)
    }
    replies = _ask_in_turn(asker, "salience-local", conversations, sampling)
    return {
        key: [list(map(first_integer, replies[f"{key}/{place + 1}"])) for place in range(len(procedure.steps))]
        for key, procedure in procedures.items()
    }


def _opening(procedure: Procedure, step: str | None) -> Callable[[bool], Messages]:
    told = wording("openpi2/prompts/salience")

    def opening(hidden: bool) -> Messages:
        if hidden:
            text = told["hidden"]
        elif step is None:
            listed = "\n".join(f"- {line}" for line in procedure.steps)
            text = told["global"].format(goal=procedure.goal, steps=listed)
        else:
            text = told["local"].format(goal=procedure.goal, step=step)
        return [system(told["system"]), *turns(text, told["accept"])]

    return opening


def _ask_in_turn(
    asker: Asker,
    name: str,
    asked: Mapping[str, tuple[Sequence[str], Callable[[bool], Messages]]],
    sampling: Mapping[str, Any],
) -> dict[str, list[str]]:
    def next_entity(key: str, replies: Sequence[str]) -> Conversation:
        entities, opening = asked[key]
        said = [text for pair in zip(entities, replies, strict=False) for text in pair]
        entity = entities[len(replies)]
        # Earlier answers tell of the procedure, so the imagined view has none.
        imagined = [*opening(True), *turns(entity)]
        return Conversation("openpi2", key, [*opening(False), *turns(*said, entity)], imagined)

    counts = {key: len(entities) for key, (entities, _) in asked.items()}
    return ask_by_turns(asker, f"{name}-{{}}", counts, next_entity, max_new_tokens=_TOKENS, **sampling)


def predict_salience(asker: Asker, procedures: Mapping[str, Procedure], **sampling: Any) -> Saliences:
    """A model's salience of every gold entity, in each procedure and at each of its steps."""
    entities = {key: [states.entity for states in procedure.states] for key, procedure in procedures.items()}
    overall = ask_global(asker, procedures, entities, **sampling)
    everywhere = {key: [entities[key]] * len(procedure.steps) for key, procedure in procedures.items()}
    local = ask_local(asker, procedures, everywhere, **sampling)
    return {
        key: tuple(
            EntitySalience.model_construct(entity=name, overall=overall[key][i], steps=tuple(s[i] for s in local[key]))
            for i, name in enumerate(entities[key])
        )
        for key in procedures
    }


def salience_file(content: Mapping[str, Any], predictions: Saliences) -> str:
    """Return predictions in the official format: the content of the file of procedures with predicted salience."""
    written = {key: copy.deepcopy(content[key]) for key in predictions}
    for key, entities in predictions.items():
        for state, predicted in zip(written[key]["states"], entities, strict=True):
            state[PREDICTED[0]] = str(predicted.overall)
            for (step, changes), value in zip(state["answers"].items(), predicted.steps, strict=True):
                listed = changes if isinstance(changes, list) else changes.get("states", changes.get("attributes"))
                state["answers"][step] = {"attributes": listed, PREDICTED[1]: str(value)}
    return official_text(written)


def agreement(first: Saliences, second: Saliences, level: Level, *, official: bool = True) -> Agreement:
    """The agreement of two judges on the procedures of the second.

    Args:
        level: of the entities of a procedure, or of its entities at each step.
        official: as the official script does, else corrected.
    """
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
    """Pearson's r; None where a vector is constant or has one value."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _vector(entities: Sequence[EntitySalience], level: Level, official: bool) -> list[int]:
    values = [value for entity in entities for value in ((entity.overall,) if level == "global" else entity.steps)]
    if not official:
        return [min(max(value, 0), _HIGHEST) for value in values]
    if level == "global":
        values = [value if 0 <= value <= _HIGHEST else 0 for value in values]
    return [*values, 0]


def salience_result(human: Saliences, second: Saliences | None, predictions: Saliences | None) -> SystemResult:
    """Agreement with the first annotator: of the predictions and, where their file is there, of the second one."""
    judges = {"second annotator": second, "predictions": predictions}
    rows, detail, headline = [], {}, {}
    for name, judge in judges.items():
        if judge is None:
            continue
        found = {
            f"{level}_{kind}": agreement(human, judge, level, official=kind == "official")
            for level in ("global", "local")
            for kind in ("official", "corrected")
        }
        means = ("-" if item.mean is None else cell(item.mean) for item in found.values())
        rows.append((f"{name} ({scored(len(judge), len(human))})", *means))
        detail[name.replace(" ", "_")] = {key: vars(item) for key, item in found.items()}
        if name == "predictions":
            headline = {f"salience_{level}": found[f"{level}_official"].mean for level in ("global", "local")}
    columns = ("with the first annotator", "global", "global, corrected", "local", "local, corrected")
    table = Table.of(columns, rows, "Salience, mean Pearson's r of procedures (- is undefined)")
    measures = [] if predictions is None else _measures(human, predictions)
    return SystemResult({**headline, "salience": detail}, [table], measures=measures)


def _measures(human: Saliences, predictions: Saliences) -> list[Measure]:
    """Pearson's r procedure by procedure; nothing where the mean is undefined."""
    about = digest([[key, [vars(item) for item in human[key]]] for key in sorted(predictions)])
    levels: tuple[Level, ...] = ("global", "local")
    found = []
    for level in levels:
        for official in (True, False):
            own = agreement(human, predictions, level, official=official)
            if own.mean is not None:
                defined = {key: value for key, value in own.by_procedure.items() if value is not None}
                name = f"salience r, {level}" + ", corrected" * (not official)
                found += shares(name, "procedures", about, defined)
    return found


class Salience(Task[Saliences, Saliences]):
    """Salience of the gold entities."""

    kind = "salience"
    official = (HUMAN,)

    def read_gold(self, path: Path, options: Any) -> Saliences:
        return read_salience(path)

    def read_predictions(self, path: Path, gold: Saliences, options: Any) -> Saliences:
        found = read_salience(path)
        check_same_entities(gold, found, path)
        return found

    def evaluate(self, gold: Saliences, answers: Saliences, options: Any, seed: int) -> SystemResult:
        return salience_result(gold, None, answers)

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask a model, and compare its answers and a second annotator's with the first annotator's."""
        path = self.gold_at(call.data, call.options, "--data")
        second = path.with_name(SECOND_HUMAN)
        procedures = {key: item for key, item in read_procedures(path).items() if key in JUDGED}
        predictions = predict_salience(asker, drawn(call, procedures), **sampling(call))
        judged = read_salience(second) if second.is_file() else None
        files = {"salience.json": salience_file(read_official(path), predictions)}
        return replace(salience_result(read_salience(path), judged, predictions), files=files)

    def template(self, gold: Saliences, options: Any) -> Iterator[dict[str, Any]]:
        """One line per entity in its procedure, with an empty step, and one in each of its steps."""
        for key, entities in gold.items():
            for item in entities:
                for step in ("", *range(1, len(item.steps) + 1)):
                    yield {"procedure": key, "entity": item.entity, "step": step, "salience": ""}

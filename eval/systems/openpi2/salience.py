"""Salience: how much an entity matters, to a procedure (global) and to a step (local), by a model and by people.

The judges of procedures 1 to 20 are compared by Pearson's r of each procedure, then the plain mean (paper section 4).
Officially a 0 is appended to both vectors, because r is undefined if one is constant, and a global value outside 0–5
counts as 0 (a local one does not). The corrected score appends nothing, moves any value outside 0–5 to the nearest
bound, and leaves out procedures where r is undefined.
"""

import copy
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from pydantic import AliasChoices, Field, field_validator

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import COLOURS, HATCHES, STYLE, legend_name, svg_text
from d2e_sft.util.table import Table
from eval.run.task import TaskItem
from eval.score.measures import digest, shares
from eval.systems.asking import Asker, ask_by_turns, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.gold import Procedure, Procedures, official_text, read_official, read_procedures
from eval.systems.openpi2.task import OpenPITask, cell, scored
from eval.systems.reading import GoldRow, check_ids, checked

HUMAN = "dev-data-reformatted-v4_votes_score_salience_1-20.json"
SECOND_HUMAN = "dev-data-reformatted-v4_votes_salience_1-20_human2.json"
FIGURE = "salience.svg"
JUDGED = tuple(map(str, range(1, 21)))
_PREDICTED = ("global_salience_pred", "local_salience_pred")
Level = Literal["global", "local"]
_LEVELS: tuple[Level, ...] = ("global", "local")
_HIGHEST = 5
_TOKENS = 64  # a number and one sentence
_GOAL = 24  # characters of a goal that the figure shows


class EntitySalience(GoldRow):
    """One entity's salience: in the procedure, and in each step."""

    bounded: ClassVar[bool] = True
    entity: str
    overall: int = Field(validation_alias=AliasChoices(_PREDICTED[0], "global_salience"))
    steps: tuple[int, ...] = Field(validation_alias="answers")

    @field_validator("steps", mode="before")
    @classmethod
    def _local(cls, answers: Any) -> Any:
        if not isinstance(answers, dict):
            return answers
        return [_StepSalience.model_validate(step).value for step in answers.values()]


class Count(GoldRow):
    """Numbers without bounds that stand for an entity's salience: votes, or a score."""

    bounded: ClassVar[bool] = False
    entity: str
    overall: float
    steps: tuple[float, ...]


class _StepSalience(GoldRow):
    value: int = Field(validation_alias=AliasChoices(_PREDICTED[1], "local_salience"))


class _Judged(GoldRow):
    states: tuple[EntitySalience, ...]


Saliences = Mapping[str, tuple[EntitySalience | Count, ...]]


@dataclass(frozen=True)
class Judges:
    """The first annotator, and by name the others that are compared with this one; `goals` are the procedures'."""

    first: Saliences
    others: Mapping[str, Saliences]
    goals: Mapping[str, str]


def read_salience(path: Path) -> Saliences:
    """Read judgements or predictions of the judged procedures; UserError if the file is damaged or has neither."""
    judged = {key: value for key, value in read_official(path).items() if key in JUDGED}
    return {key: item.states for key, item in checked(dict[str, _Judged], judged, str(path)).items()}


def read_judges(path: Path) -> Judges:
    """Read the first annotator's file, the second's if it is next to it, and what the first file counts.

    These are the votes for an entity and its score in OpenPI, if every state has them (paper figure 3).
    """
    first, content, second = read_salience(path), read_official(path), path.with_name(SECOND_HUMAN)
    judges: dict[str, Saliences] = {"second annotator": read_salience(second)} if second.is_file() else {}
    for name, key in (("votes", "votes"), ("saliency score", "score")):
        states = [state for number in first for state in content[number]["states"]]
        if all(key in part for state in states for part in (state, *state["answers"].values())):
            counts = {
                number: [
                    {**state, "overall": state[key], "steps": [step[key] for step in state["answers"].values()]}
                    for state in content[number]["states"]
                ]
                for number in first
            }
            judges[name] = checked(dict[str, tuple[Count, ...]], counts, str(path))
    return Judges(first, judges, {number: str(content[number].get("goal", number)) for number in first})


def check_same_entities(first: Saliences, second: Saliences, path: Path) -> None:
    """Refuse two files that do not judge the same entities and steps in the same order; `path` is the second's."""
    check_ids(path, "procedure", second, first)
    for key, entities in second.items():
        actual, expected = ([(item.entity, len(item.steps)) for item in judged] for judged in (entities, first[key]))
        if actual != expected:
            raise UserError(
                f"{path}: {key}: got the entities {[name for name, _ in actual]}; expected those of the gold file, "
                f"{[name for name, _ in expected]}, each with its steps",
                remedy="score predictions for the same file of procedures",
            )


def ask_salience(
    asker: Asker, level: Level, tasks: Mapping[str, tuple[Procedure, str, Sequence[str]]], **sampling: Any
) -> dict[str, list[int]]:
    """Ask for the salience of entities one after the other, each with the answers to those before it.

    `tasks` has by name a procedure, one of its steps (unused if `level` is global), and entities.
    """

    def next_entity(name: str, replies: Sequence[str]) -> TaskItem:
        procedure, step, entities = tasks[name]
        values = {"goal": procedure.goal, "steps": procedure.steps, "step": step, "entities": entities}
        return conversation("openpi2", name, "openpi2/prompts/salience", level=level, replies=replies, **values)

    counts = {name: len(entities) for name, (_, _, entities) in tasks.items()}
    options = {"max_new_tokens": _TOKENS, **sampling}
    replies = ask_by_turns(asker, f"salience-{level}-{{}}", counts, next_entity, **options)
    return {name: list(map(first_integer, texts)) for name, texts in replies.items()}


def first_integer(reply: str) -> int:
    """Return the first whole number in a reply, otherwise 1."""
    digits = re.search(r"\d+", reply)
    return int(digits.group()) if digits else 1


def ask_local(
    asker: Asker, procedures: Procedures, entities: Mapping[str, Sequence[Sequence[str]]], **sampling: Any
) -> dict[str, list[list[int]]]:
    """Ask for the salience of entities at each step of their procedure."""
    tasks = {
        f"{key}/{place}": (procedure, step, names)
        for key, procedure in procedures.items()
        for place, (step, names) in enumerate(zip(procedure.steps, entities[key], strict=True), start=1)
    }
    values = iter(ask_salience(asker, "local", tasks, **sampling).values())
    return {key: [next(values) for _ in procedure.steps] for key, procedure in procedures.items()}


def predict_salience(asker: Asker, procedures: Procedures, **sampling: Any) -> Saliences:
    """Return a model's salience of every gold entity, in each procedure and at each of its steps."""
    entities = {key: [states.entity for states in procedure.states] for key, procedure in procedures.items()}
    tasks = {key: (procedure, "", entities[key]) for key, procedure in procedures.items()}
    overall = ask_salience(asker, "global", tasks, **sampling)
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
            state[_PREDICTED[0]] = str(predicted.overall)
            for (step, changes), value in zip(state["answers"].items(), predicted.steps, strict=True):
                attributes = changes if isinstance(changes, list) else changes.get("states", changes.get("attributes"))
                state["answers"][step] = {"attributes": attributes, _PREDICTED[1]: str(value)}
    return official_text(written)


def agreement(
    first: Saliences, second: Saliences, level: Level, *, official: bool = True
) -> tuple[float | None, dict[str, float | None]]:
    """Return the mean r of two judges, and r of each procedure of the second; None where it is undefined."""
    by_procedure = {
        key: pearson(_vector(first[key], level, official), _vector(entities, level, official))
        for key, entities in second.items()
    }
    defined = [value for value in by_procedure.values() if value is not None]
    # The official mean of a NaN is NaN: one procedure that is undefined leaves the whole so.
    if not defined or (official and len(defined) < len(by_procedure)):
        return None, by_procedure
    return sum(defined) / len(defined), by_procedure


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's r; None if a vector is constant or has one value."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _vector(entities: Sequence[EntitySalience | Count], level: Level, official: bool) -> list[float]:
    values: list[float] = []
    for entity in entities:
        levels: list[float] = [entity.overall] if level == "global" else list(entity.steps)
        if entity.bounded and not official:
            levels = [min(max(value, 0), _HIGHEST) for value in levels]
        elif entity.bounded and level == "global":
            levels = [value if 0 <= value <= _HIGHEST else 0 for value in levels]
        values += levels
    return [*values, 0] if official else values


def salience_result(judges: Judges, predictions: Saliences) -> BenchmarkResult:
    """Return the agreement of the predictions and of other judges with the first annotator, with a figure."""
    first, keys = judges.first, list(predictions)
    sha = digest([[key, [vars(item) for item in first[key]]] for key in sorted(predictions)])
    rows: list[tuple[str, ...]] = []
    detail, headline, measures = {}, {}, []
    bars: dict[str, list[float | None]] = {}
    for name, judge in {**judges.others, "predictions": predictions}.items():
        agreements = {
            (level, rule): agreement(first, judge, level, official=rule == "official")
            for level in _LEVELS
            for rule in ("official", "corrected")
        }
        means = ("-" if mean is None else cell(mean) for mean, _ in agreements.values())
        rows.append((f"{name} ({scored(len(judge), len(first))})", *means))
        bars[name] = [agreements["global", "official"][1].get(key) for key in keys]
        detail[name.replace(" ", "_")] = {
            "_".join(form): {"mean": mean, "by_procedure": by_procedure}
            for form, (mean, by_procedure) in agreements.items()
        }
        for (level, rule), (mean, by_procedure) in agreements.items() if name == "predictions" else ():
            if rule == "official":
                headline[f"salience_{level}"] = mean
            if mean is not None:
                defined = {key: value for key, value in by_procedure.items() if value is not None}
                title = f"salience r, {level}" + ", corrected" * (rule == "corrected")
                measures += shares(title, "procedures", sha, defined, form="correlation")
    columns = ("with the first annotator", "global", "global, corrected", "local", "local, corrected")
    table = Table.of(columns, rows, "Salience, mean Pearson's r of procedures (- is undefined)")
    figure = salience_plot([judges.goals[key] for key in keys], bars)
    tables = [table, _values({"first annotator": first, **judges.others, "predictions": predictions})]
    return BenchmarkResult({**headline, "salience": detail}, tables, {FIGURE: figure}, measures=measures)


def _values(judges: Mapping[str, Saliences]) -> Table:
    """Return mean and standard deviation of the values that annotators and predictions give (section 5)."""
    rows = []
    for name, judge in judges.items():
        entities = [entity for items in judge.values() for entity in items if entity.bounded]
        if entities:  # votes and scores have other units
            levels = [item.overall for item in entities], [value for item in entities for value in item.steps]
            rows.append((name, *(f"{statistic(values):.1f}" for values in levels for statistic in (np.mean, np.std))))
    return Table.of(("salience given by", "global, mean", "deviation", "local, mean", "deviation"), rows)


def salience_plot(goals: Sequence[str], correlations: Mapping[str, Sequence[float | None]]) -> str:
    """Draw each judge's correlation with the first annotator as SVG, a group of bars per procedure (figure 3)."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(correlations)
        for index, (judge, values) in enumerate(correlations.items()):
            axes.bar(
                [place + (index - (len(correlations) - 1) / 2) * width for place in range(len(goals))],
                [float("nan") if value is None else value for value in values],
                width=0.9 * width,
                label=legend_name(judge),
                color=COLOURS[index],
                hatch=HATCHES[index],
                edgecolor="white",
                linewidth=0,
            )
        names = [textwrap.shorten(goal, _GOAL, placeholder="…") for goal in goals]
        axes.set_xticks(range(len(goals)), names, rotation=-35, ha="left", rotation_mode="anchor")
        axes.axhline(0, color="#222222", linewidth=0.8)
        axes.set_ylim(top=1.02)
        axes.set_ylabel("Pearson's r, global salience")
        figure.legend(loc="outside upper left", ncols=len(correlations), frameon=False)
        figure.draw_without_rendering()  # the ticks follow the first layout, and the second one their width
        return svg_text(figure, "salience")


class Salience(OpenPITask[Judges, Saliences]):
    kind = "salience"
    official = (HUMAN,)

    def read_gold(self, path: Path, options: Any) -> Judges:
        return read_judges(path)

    def read_predictions(self, path: Path, gold: Judges, options: Any) -> Saliences:
        predictions = read_salience(path)
        check_same_entities(gold.first, predictions, path)
        return predictions

    def evaluate(self, gold: Judges, answers: Saliences, options: Any, seed: int) -> BenchmarkResult:
        return salience_result(gold, answers)

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        path = self.gold_at(call.data, call.options, "--data")
        procedures = {key: procedure for key, procedure in read_procedures(path).items() if key in JUDGED}
        predictions = predict_salience(asker, call.drawn_from(procedures), **call.sampling)
        result = salience_result(self.read_gold(path, call.options), predictions)
        kept = {"salience.json": salience_file(read_official(path), predictions)}
        return replace(result, files={**result.files, **kept})

    def template(self, gold: Judges, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per entity in its procedure, with an empty step, and one in each of its steps."""
        for key, entities in gold.first.items():
            for item in entities:
                for step in ("", *range(1, len(item.steps) + 1)):
                    yield {"procedure": key, "entity": item.entity, "step": step, "salience": ""}

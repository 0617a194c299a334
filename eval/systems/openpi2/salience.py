"""Salience: how much an entity matters, to a procedure (global) and to a step (local), by a model and by people."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from d2e_sft.util.table import Table
from eval.compare.measures.measure import digest, shares
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_by_turns, system, turns, wording
from eval.systems.openpi2 import judgements
from eval.systems.openpi2.analysis.salience_figure import salience_plot
from eval.systems.openpi2.gold import Procedure, Procedures, official_text, read_official, read_procedures
from eval.systems.openpi2.judgements import (
    PREDICTED,
    EntitySalience,
    Judges,
    Level,
    Saliences,
    agreement,
    read_judges,
    read_salience,
)
from eval.systems.openpi2.metrics import cell, scored
from eval.systems.openpi2.task import Task, drawn, sampling
from eval.systems.system import SystemCall, SystemResult

HUMAN = "dev-data-reformatted-v4_votes_score_salience_1-20.json"
FIGURE = "salience.svg"
SECOND_HUMAN = "dev-data-reformatted-v4_votes_salience_1-20_human2.json"
_TOKENS = 64  # a number and one sentence


def first_integer(reply: str) -> int:
    """Return the first whole number in a reply, otherwise 1."""
    digits = re.search(r"\d+", reply)
    return int(digits.group()) if digits else 1


def ask_salience(
    asker: Asker, level: Level, asked: Mapping[str, tuple[Procedure, str, Sequence[str]]], **sampling: Any
) -> dict[str, list[int]]:
    """Ask for the salience of entities one after the other, each with the answers to those before it.

    `asked` has by name a procedure, one of its steps (unused if `level` is global), and entities.
    """
    told = wording("openpi2/prompts/salience")

    def next_entity(name: str, replies: Sequence[str]) -> Conversation:
        procedure, step, entities = asked[name]
        listed = "\n".join(f"- {line}" for line in procedure.steps)
        text = told[level].format(goal=procedure.goal, step=step, steps=listed)
        said = [text for pair in zip(entities, replies, strict=False) for text in pair]
        entity = entities[len(replies)]
        original, imagined = (
            # Earlier answers tell of the procedure, so the imagined view has none.
            [system(told["system"]), *turns(opening, told["accept"], *before, entity)]
            for opening, before in ((text, said), (told["hidden"], ()))
        )
        return Conversation("openpi2", name, original, imagined)

    counts = {name: len(entities) for name, (_, _, entities) in asked.items()}
    options = {"max_new_tokens": _TOKENS, **sampling}
    replies = ask_by_turns(asker, f"salience-{level}-{{}}", counts, next_entity, **options)
    return {name: list(map(first_integer, said)) for name, said in replies.items()}


def ask_local(
    asker: Asker, procedures: Procedures, entities: Mapping[str, Sequence[Sequence[str]]], **sampling: Any
) -> dict[str, list[list[int]]]:
    """Ask for the salience of entities at each step of their procedure."""
    asked = {
        f"{key}/{place}": (procedure, step, named)
        for key, procedure in procedures.items()
        for place, (step, named) in enumerate(zip(procedure.steps, entities[key], strict=True), start=1)
    }
    found = ask_salience(asker, "local", asked, **sampling)
    return {key: [found[f"{key}/{n}"] for n in range(1, len(one.steps) + 1)] for key, one in procedures.items()}


def predict_salience(asker: Asker, procedures: Procedures, **sampling: Any) -> Saliences:
    """Return a model's salience of every gold entity, in each procedure and at each of its steps."""
    entities = {key: [states.entity for states in procedure.states] for key, procedure in procedures.items()}
    asked = {key: (procedure, "", entities[key]) for key, procedure in procedures.items()}
    overall = ask_salience(asker, "global", asked, **sampling)
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


def salience_result(judges: Judges, predictions: Saliences) -> SystemResult:
    """Return the agreement of the predictions and of other judges with the first annotator, with a figure."""
    human, keys = judges.first, list(predictions)
    about = digest([[key, [vars(item) for item in human[key]]] for key in sorted(predictions)])
    rows: list[tuple[str, ...]] = []
    detail, headline, measures = {}, {}, []
    bars: dict[str, list[float | None]] = {}
    for name, judge in {**judges.others, "predictions": predictions}.items():
        found = {
            (level, kind): agreement(human, judge, level, official=kind == "official")
            for level in judgements.LEVELS
            for kind in ("official", "corrected")
        }
        means = ("-" if own.mean is None else cell(own.mean) for own in found.values())
        rows.append((f"{name} ({scored(len(judge), len(human))})", *means))
        bars[name] = [found["global", "official"].by_procedure.get(key) for key in keys]
        detail[name.replace(" ", "_")] = {"_".join(key): vars(own) for key, own in found.items()}
        for (level, kind), own in found.items() if name == "predictions" else ():
            if kind == "official":
                headline[f"salience_{level}"] = own.mean
            if own.mean is not None:
                defined = {key: value for key, value in own.by_procedure.items() if value is not None}
                title = f"salience r, {level}" + ", corrected" * (kind == "corrected")
                measures += shares(title, "procedures", about, defined)
    columns = ("with the first annotator", "global", "global, corrected", "local", "local, corrected")
    table = Table.of(columns, rows, "Salience, mean Pearson's r of procedures (- is undefined)")
    figure = salience_plot([judges.goals[key] for key in keys], bars)
    return SystemResult(
        {**headline, "salience": detail}, [table, _values(judges, predictions)], {FIGURE: figure}, measures=measures
    )


def _values(judges: Judges, predictions: Saliences) -> Table:
    """Return mean and standard deviation of the values that annotators and predictions give (section 5)."""
    given = {"first annotator": judges.first, **judges.others, "predictions": predictions}
    rows = []
    for name, judge in given.items():
        entities = [entity for own in judge.values() for entity in own if entity.bounded]
        if entities:  # votes and scores have other units
            levels = [one.overall for one in entities], [value for one in entities for value in one.steps]
            rows.append((name, *(f"{own(values):.1f}" for values in levels for own in (np.mean, np.std))))
    columns = ("salience given by", "global, mean", "deviation", "local, mean", "deviation")
    return Table.of(columns, rows)


class Salience(Task[Judges, Saliences]):
    """Salience of the gold entities."""

    kind = "salience"
    official = (HUMAN,)

    def read_gold(self, path: Path, options: Any) -> Judges:
        return read_judges(path, path.with_name(SECOND_HUMAN))

    def read_predictions(self, path: Path, gold: Judges, options: Any) -> Saliences:
        found = read_salience(path)
        judgements.check_same_entities(gold.first, found, path)
        return found

    def evaluate(self, gold: Judges, answers: Saliences, options: Any, seed: int) -> SystemResult:
        return salience_result(gold, answers)

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask a model, and compare its answers and those of other judges with the first annotator's."""
        path = self.gold_at(call.data, call.options, "--data")
        procedures = {key: item for key, item in read_procedures(path).items() if key in judgements.JUDGED}
        predictions = predict_salience(asker, drawn(call, procedures), **sampling(call))
        result = salience_result(self.read_gold(path, call.options), predictions)
        return replace(
            result, files={**result.files, "salience.json": salience_file(read_official(path), predictions)}
        )

    def template(self, gold: Judges, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per entity in its procedure, with an empty step, and one in each of its steps."""
        for key, entities in gold.first.items():
            for item in entities:
                for step in ("", *range(1, len(item.steps) + 1)):
                    yield {"procedure": key, "entity": item.entity, "step": step, "salience": ""}

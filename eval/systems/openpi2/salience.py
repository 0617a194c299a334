"""Salience: how much an entity matters, by a model and by people (paper section 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.openpi2.gold import Procedure
from eval.systems.openpi2.parse import first_integer
from eval.systems.openpi2.reading import read_json
from eval.systems.openpi2.salience_gold import PREDICTED, EntitySalience, Saliences
from eval.systems.openpi2.salience_scorer import agreement
from eval.systems.openpi2.tables import cell, scored
from eval.systems.openpi2.tracking import DATASET
from eval.systems.openpi2.wording import system, turns, wording
from eval.systems.system import ScoreTable, SystemResult

_TOKENS = 64  # a number and one sentence


def ask_global(
    asker: Asker, procedures: Mapping[str, Procedure], entities: Mapping[str, Sequence[str]], **sampling: Any
) -> dict[str, list[int]]:
    """The salience of each entity in its procedure, each asked with the answers to those before it.

    Args:
        entities: by procedure.
        sampling: temperature and seed.
    """
    conversations = {key: (entities[key], _opening(procedure, None)) for key, procedure in procedures.items()}
    replies = _ask_in_turn(asker, "salience-global", conversations, sampling)
    return {key: list(map(first_integer, said)) for key, said in replies.items()}


def ask_local(
    asker: Asker, procedures: Mapping[str, Procedure], entities: Mapping[str, Sequence[Sequence[str]]], **sampling: Any
) -> dict[str, list[list[int]]]:
    """The salience of entities at each step, asked likewise.

    Args:
        entities: by procedure, for each step.
    """
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
    told = wording("salience")

    def opening(hidden: bool) -> Messages:
        if hidden:
            text = told["hidden"]
        elif step is None:
            listed = "\n".join(f"- {line}" for line in procedure.steps)
            text = told["global"].format(goal=procedure.goal, steps=listed)
        else:
            text = told["local"].format(goal=procedure.goal, step=step)
        return [*system(told["system"]), *turns(text, told["accept"])]

    return opening


def _ask_in_turn(
    asker: Asker,
    name: str,
    conversations: Mapping[str, tuple[Sequence[str], Callable[[bool], Messages]]],
    sampling: Mapping[str, Any],
) -> dict[str, list[str]]:
    replies: dict[str, list[str]] = {key: [] for key in conversations}
    for number in range(max((len(entities) for entities, _ in conversations.values()), default=0)):
        left = [key for key, (entities, _) in conversations.items() if number < len(entities)]
        asked = []
        for key in left:
            entities, opening = conversations[key]
            said = [text for pair in zip(entities, replies[key], strict=False) for text in pair]
            # Earlier answers tell of the procedure, so the imagined view has none.
            imagined = [*opening(True), *turns(entities[number])]
            asked.append(Conversation(DATASET, key, [*opening(False), *turns(*said, entities[number])], imagined))
        outputs = asker.ask(f"{name}-{number + 1}", asked, max_new_tokens=_TOKENS, **sampling)
        for key, output in zip(left, outputs, strict=True):
            replies[key].append(output.strip())
    return replies


def predict_salience(asker: Asker, procedures: Mapping[str, Procedure], **sampling: Any) -> Saliences:
    """A model's salience of every gold entity, in each procedure and at each of its steps."""
    entities = {key: [states.entity for states in procedure.states] for key, procedure in procedures.items()}
    overall = ask_global(asker, procedures, entities, **sampling)
    everywhere = {key: [entities[key]] * len(procedure.steps) for key, procedure in procedures.items()}
    local = ask_local(asker, procedures, everywhere, **sampling)
    return {
        key: tuple(
            EntitySalience(name, overall[key][i], tuple(step[i] for step in local[key]))
            for i, name in enumerate(entities[key])
        )
        for key in procedures
    }


def salience_file(path: Path, predictions: Saliences) -> str:
    """Predictions in the official format: the file of procedures with the predicted salience written into it."""
    root: dict[str, Any] = read_json(path).value
    content = {key: root[key] for key in predictions}
    for key, entities in predictions.items():
        for state, predicted in zip(content[key]["states"], entities, strict=True):
            state[PREDICTED[0]] = str(predicted.overall)
            for (step, changes), value in zip(state["answers"].items(), predicted.steps, strict=True):
                listed = changes if isinstance(changes, list) else changes.get("states", changes.get("attributes"))
                state["answers"][step] = {"attributes": listed, PREDICTED[1]: str(value)}
    return json.dumps(content, indent=4, ensure_ascii=False) + "\n"


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
        rows.append((f"{name} ({scored(len(judge), len(human))})", *(cell(item.mean) for item in found.values())))
        detail[name.replace(" ", "_")] = {
            key: {"mean": item.mean, "by_procedure": item.by_procedure} for key, item in found.items()
        }
        if name == "predictions":
            headline = {f"salience_{level}": found[f"{level}_official"].mean for level in ("global", "local")}
    columns = ("with the first annotator", "global", "global, corrected", "local", "local, corrected")
    table = ScoreTable("Salience, mean Pearson's r of procedures (- is undefined)", columns, _dashed(rows))
    return SystemResult({**headline, "salience": detail}, [table])


def _dashed(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[value if value != cell(None) else "-" for value in row] for row in rows]

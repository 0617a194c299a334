"""Small procedures in the official forms, written for the tests, and the benchmark run with given answers."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.chat_template import Form
from eval.run.task import TaskItem
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult, parse_options
from eval.systems.openpi2.benchmark import OPENPI2
from eval.systems.openpi2.gold import EXPANDED, RANKED
from eval.systems.openpi2.task import ScorerOptions
from tests.eval.systems.files import OFFICIAL, save
from tests.factories import ScriptedAsker


def expanded() -> dict[str, Any]:
    """The content of a file of clusters with paraphrases."""
    return copy.deepcopy(OFFICIAL["openpi2"])


def clustered() -> dict[str, Any]:
    """The same without paraphrases."""
    content = expanded()
    for procedure in content.values():
        for cluster in procedure["clusters"].values():
            del cluster["entity_overgenerate"], cluster["entity_cluster_combined"]
            cluster["attribute_cluster"] = {
                name: item["attribute_cluster"] for name, item in cluster["attribute_cluster"].items()
            }
    return content


def ranked() -> dict[str, Any]:
    """The ranked form: mentions instead of canonical names, no clusters."""
    content = expanded()
    for procedure in content.values():
        del procedure["clusters"]
    content["1"]["states"][0]["entity"] = "water | the liquid"
    return content


def judged(values: dict[str, tuple[int, list[int]]], *, predicted: bool = False) -> dict[str, Any]:
    """Salience of the tea's entities: of the procedure, and of each step."""
    suffix = "_pred" * predicted
    tea = expanded()["1"]
    del tea["clusters"]
    for state in tea["states"]:
        overall, steps = values[state["entity"]]
        state[f"global_salience{suffix}"] = str(overall) if predicted else overall
        for value, (name, changes) in zip(steps, list(state["answers"].items()), strict=True):
            state["answers"][name] = {"votes": 3, "states": changes, f"local_salience{suffix}": value}
    return {"1": tea}


def save_official(folder: Path) -> Path:
    """A folder with the files of the three tasks."""
    save(folder / "v2.0" / EXPANDED, expanded())
    save(folder / "v2.0" / RANKED, ranked())
    return folder


Reply = Callable[[str, TaskItem], str]


def run(
    data: Path, reply: Reply, *given: str, max_samples: int | None = None, form: Form = "chat"
) -> tuple[BenchmarkResult, ScriptedAsker]:
    asker: Any = ScriptedAsker(reply)
    options = parse_options(OPENPI2.options, given, "openpi2")
    return OPENPI2.run(BenchmarkCall(data, options, max_samples, 0, form=form), asker), asker


def rescored(tmp_path: Path, result: BenchmarkResult, name: str, gold: Path, task: str) -> dict[str, Any]:
    path = save(tmp_path / name, result.files[name])
    options = parse_options(OPENPI2.score_options, [f"task={task}"], "openpi2")
    return OPENPI2.score(path, gold, options).scores


def scores_by(task: Any, scorer: Any, gold: Any, predicted: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a task's scores with this function as BERTScore; None computes none."""
    monkeypatch.setattr("eval.systems.openpi2.task.bert_scorer", lambda *_: scorer)
    options = ScorerOptions(bertscore_model="any" if scorer else None)
    return task.evaluate(gold, predicted, options, 0).scores

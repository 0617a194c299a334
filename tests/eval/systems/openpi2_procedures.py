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
from tests.eval.systems.files import save
from tests.factories import ScriptedAsker


def change(attribute: str, before: str, after: str) -> dict[str, Any]:
    return {"attribute": attribute, "before": before, "after": after, "saliency": 0.5}


def _procedure(goal: str, steps: list[str], states: list[dict[str, Any]]) -> dict[str, Any]:
    return {"goal": goal, "steps": steps, "topics": "Food", "image_urls": ["" for _ in steps], "states": states}


def _state(entity: str, *steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"entity": entity, "answers": {f"step{place}": changes for place, changes in enumerate(steps, start=1)}}


def _names(kind: str, mentions: list[str], more: list[str]) -> dict[str, Any]:
    both = [*mentions, *more]
    return {f"{kind}_cluster": mentions, f"{kind}_overgenerate": more, f"{kind}_cluster_combined": both}


def _cluster(mentions: list[str], more: list[str], **attributes: tuple[list[str], list[str]]) -> dict[str, Any]:
    own = {name: _names("attribute", *names) for name, names in attributes.items()}
    return {**_names("entity", mentions, more), "attribute_cluster": own}


# Step 1 heats water and kettle, step 2 changes the tea alone.
TEA = _procedure(
    "Brew Tea",
    ["Heat water in the kettle.", "Pour it over the leaves."],
    [
        _state("water", [change("temperature", "cold | cool", "hot"), change("place", "tap", "kettle")], []),
        _state("kettle", [change("temperature", "cold", "hot")], []),
        _state("tea", [], [change("existence", "absent", "brewed | made")]),
    ],
)
TEA_CLUSTERS = {
    "water": _cluster(
        ["water", "the liquid"],
        ["H2O"],
        temperature=(["temperature", "heat"], ["warmth"]),
        place=(["place", "location"], []),
    ),
    "kettle": _cluster(["kettle"], ["pot"], temperature=(["temperature"], [])),
    "tea": _cluster(["tea"], [], existence=(["existence"], ["presence"])),
}
NAP = _procedure("Take a Nap", ["Lie down."], [_state("you", [change("posture", "standing", "lying")])])
NAP_CLUSTERS = {"you": _cluster(["you"], [], posture=(["posture"], []))}


def expanded() -> dict[str, Any]:
    """The content of a file of clusters with paraphrases."""
    return copy.deepcopy({"1": {**TEA, "clusters": TEA_CLUSTERS}, "2": {**NAP, "clusters": NAP_CLUSTERS}})


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
    content = copy.deepcopy({"1": TEA, "2": NAP})
    content["1"]["states"][0]["entity"] = "water | the liquid"
    return content


def judged(values: dict[str, tuple[int, list[int]]], *, predicted: bool = False) -> dict[str, Any]:
    """Salience of the tea's entities: of the procedure, and of each step."""
    suffix = "_pred" * predicted
    content = {"1": copy.deepcopy(TEA)}
    for state in content["1"]["states"]:
        overall, steps = values[state["entity"]]
        state[f"global_salience{suffix}"] = str(overall) if predicted else overall
        for value, (name, changes) in zip(steps, list(state["answers"].items()), strict=True):
            state["answers"][name] = {"votes": 3, "states": changes, f"local_salience{suffix}": value}
    return content


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

"""OpenPI2.0 as a benchmark: scripted answers to the three tasks, and the command line with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from d2e_sft.util.errors import UserError
from eval.run.task import Conversation
from eval.systems.openpi2.gold import CLUSTERED, EXPANDED, RANKED
from eval.systems.openpi2.system import OPENPI2, TASKS
from eval.systems.openpi2.task import PredictionKind, TaskName
from eval.systems.system import parse_options
from tests.command import call, output_of, refusal_of
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import clustered, rescored, run, save_official

SCHEMATA = {
    "1/1": "water (temperature, place), kettle (temperature)",
    "1/2": "tea (existence)",
    "2/1": "you (posture)",
}
SENTENCES = {
    "1/1": "- heat of water was cold before and hot after\n- size of kettle was small before and big after",
    "1/2": "- existence of tea was absent before and brewed after",
    "2/1": "I cannot tell.",
}
STATES = {
    "1/1/1": "Before: cold\nAfter: hot",
    "1/1/2": "Before: tap\nAfter: kettle",
    "1/1/3": "Before: cool\nAfter: hot",
    "1/2/1": "Before: absent\nAfter: made",
    "2/1/1": "standing before and lying after",
}


def tracked(name: str, chat: Conversation) -> str:
    replies = {"schemata": SCHEMATA, "states": STATES, "complete": SENTENCES}
    return replies[name.partition("-")[0]][chat.id]


def test_the_three_tasks_are_asked_and_scored(tmp_path: Path) -> None:
    data = save_official(tmp_path)
    result, asker = run(data, tracked)
    scores = result.scores
    assert scores["schemata_global_f1"] == scores["schemata_global_f1_expanded"] == 1
    assert scores["complete_f1"] == pytest.approx(0.5)
    assert scores["states_accuracy"] == 3 / 5
    assert scores["states"]["corrected"]["accuracy"] == 4 / 5
    assert list(asker.asked) == ["schemata-step1", "schemata-step2", "states", "complete-step1", "complete-step2"]
    assert [chat.id for chat in asker.asked["schemata-step2"]] == ["1/2"]
    gold = tmp_path / "v2.0"
    for task, file in (("schemata", EXPANDED), ("complete", EXPANDED), ("states", RANKED)):
        again = rescored(tmp_path, result, f"{task}.json", gold / file, task)
        assert again == {key: scores[key] for key in again}


def test_max_samples_counts_procedures(tmp_path: Path) -> None:
    result, asker = run(save_official(tmp_path), tracked, max_samples=1)
    assert result.scores["schemata"]["procedures"] == result.scores["states"]["procedures"] == 1
    assert len(asker.asked["schemata-step1"]) == 1
    assert "1 of 2 procedures" in result.tables[0].markdown()


def test_without_paraphrases_nothing_is_scored_with_expansion(tmp_path: Path) -> None:
    save(tmp_path / CLUSTERED, clustered())
    result, _ = run(tmp_path, tracked, "task=schemata")
    assert "schemata_global_f1_expanded" not in result.scores
    with pytest.raises(UserError, match=r"holds no dev-ranked\.json"):
        run(tmp_path, tracked, "task=states")


def test_procedures_are_paired_by_id_and_it_is_told_where_position_would_pair_others(tmp_path: Path) -> None:
    data = save_official(tmp_path / "raw")
    result, _ = run(data, tracked, "task=schemata")
    written = json.loads(result.files["schemata.json"])
    moved = save(tmp_path / "moved.json", {"2": written["2"], "1": written["1"]})
    part = save(tmp_path / "part.json", {"1": written["1"]})
    for path, warning in ((moved, "2 procedures are not at the same place"), (part, "")):
        said = call("score", "openpi2", "--predictions", path, "--gold", data, "--json", "-")
        if path is moved:
            assert json.loads(said.out)["schemata_global_f1"] == result.scores["schemata_global_f1"]
        assert warning in said.err
        assert bool(warning) == ("the official script pairs them by position" in said.err)


def test_the_runs_folder_and_the_folder_of_official_files_will_do(tmp_path: Path) -> None:
    data = save_official(tmp_path / "raw")
    result, _ = run(data, tracked, "task=states")
    folder = tmp_path / "run" / "eval" / "openpi2-task=states"
    save(folder / "states.json", json.loads(result.files["states.json"]))
    score = ("score", "openpi2", "--predictions", tmp_path / "run", "--gold", data, "--json", "-")
    scores = json.loads(output_of(*score, "--set", "task=states"))
    assert scores["states_accuracy"] == result.scores["states_accuracy"]
    assert "holds no complete.json" in refusal_of(*score, "--set", "task=complete")


def test_how_to_score_is_no_part_of_what_was_asked() -> None:
    options = parse_options(OPENPI2.options, ["task=states", "bertscore_model=any", "planner_seconds=3"], "openpi2")
    assert options.variant == "task=states", "so that answers are kept when a scorer is added"


def test_every_task_and_every_kind_of_predictions_can_be_named() -> None:
    assert {*get_args(TaskName), *get_args(PredictionKind)} == {"all", *TASKS}
    assert set(get_args(PredictionKind)) == {name for name, task in TASKS.items() if hasattr(task, "kind")}

"""wandb (offline), trackio and tensorboard get what a run logs, its recipe, and the table of predictions."""

from __future__ import annotations

import json
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.command import program
from tests.factories import log_history, make_world, write_recipe
from tests.tiny import make_sample

EVALUATED = {"loss", "ce", "kl", "debiased_accuracy", "plain_accuracy", "bias_share"}
LOGGED = {*EVALUATED, "alpha", "tokens_per_second"}
NAMES = {f"train/{name}" for name in LOGGED} | {f"eval/{name}" for name in EVALUATED}
TRACKERS = [name for name in ("tensorboard", "wandb", "trackio") if find_spec(name) is not None]


def needs(tracker: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(tracker not in TRACKERS, reason=f"{tracker} is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two steps were trained in a process of its own, evaluated after both, told to all trackers."""
    dev = [make_sample(number, split="dev") for number in (20, 21)]
    folder = make_world(tmp_path_factory.mktemp("trackers"), dev=dev, bench=0)
    write_recipe(
        folder, folder / "run", f"data.dev={folder}/dev.jsonl", "d2e.alpha=0.7", "eval.max_new_tokens=4",
        "train.max_steps=2", "train.eval_steps=1", f"train.report_to={TRACKERS}", "train.project=boundary",
    )  # fmt: skip
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    places["TRACKIO_DIR"] = str(folder / "trackio")
    ended = program(folder, "d2e_sft.cli:main", "train", folder / "run.yaml", **places)
    assert ended.status == 0, ended.printed[-3000:]
    return folder


def evaluated(folder: Path) -> dict[int, dict[str, Any]]:
    """The run's own log by step, of what was evaluated."""
    return {entry["step"]: entry for entry in log_history(folder / "run") if "eval_loss" in entry}


def predictions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "held_out_predictions.jsonl").read_text().splitlines()]


@needs("tensorboard")
def test_tensorboard_gets_curves_and_the_table(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = {path.parent for path in (trained / "run" / "runs").rglob("events.out.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= NAMES
    for event in events.Scalars("eval/ce"):
        assert event.value == pytest.approx(evaluated(trained)[event.step]["eval_ce"])
    assert [event.value for event in events.Scalars("train/alpha")] == pytest.approx([0.7, 0.7])
    tables = events.Tensors("held_out_predictions/text_summary")
    assert [table.step for table in tables] == [1, 2]
    shown = tables[1].tensor_proto.string_val[0].decode()
    for row in predictions(trained)[2:]:
        assert f" {row['id']} |" in shown
        assert " ".join(row["question"].split()) in shown


@needs("wandb")
def test_wandb_offline_gets_the_table(trained: Path) -> None:
    [file] = trained.rglob("*.wandb")
    tables = [json.loads(path.read_text()) for path in sorted(file.parent.rglob("*held_out_predictions_*.json"))]
    rows = [dict(zip(table["columns"], row, strict=True)) for table in tables for row in table["data"]]
    assert sorted(rows, key=str) == sorted(predictions(trained), key=str)


@needs("trackio")
def test_trackio_gets_curves_the_recipe_and_the_table(trained: Path) -> None:
    [file] = (trained / "trackio").rglob("boundary*.db")
    with sqlite3.connect(file) as database:
        logged = [json.loads(text) for (text,) in database.execute("SELECT metrics FROM metrics ORDER BY step")]
        [configured] = [json.loads(text) for (text,) in database.execute("SELECT config FROM configs")]
    assert {key for entry in logged for key in entry} >= NAMES
    found = [entry["eval/ce"] for entry in logged if "eval/ce" in entry]
    assert found == pytest.approx([entry["eval_ce"] for entry in evaluated(trained).values()])
    assert configured["recipe"]["d2e"]["alpha"] == 0.7
    tables = [entry["held_out_predictions"] for entry in logged if "held_out_predictions" in entry]
    assert len(tables) == 2

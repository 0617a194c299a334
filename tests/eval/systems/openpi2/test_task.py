"""The options of the benchmark and of its scorer."""

from __future__ import annotations

from typing import get_args

from eval.systems.openpi2.system import OPENPI2, TASKS
from eval.systems.openpi2.task import PredictionKind, TaskName
from eval.systems.system import parse_options


def test_how_to_score_is_no_part_of_what_was_asked() -> None:
    options = parse_options(OPENPI2.options, ["task=states", "bertscore_model=any", "planner_seconds=3"], "openpi2")
    assert options.variant == "task=states", "so that answers are kept when a scorer is added"


def test_every_task_and_every_kind_of_predictions_can_be_named() -> None:
    assert {*get_args(TaskName), *get_args(PredictionKind)} == {"all", *TASKS}
    assert set(get_args(PredictionKind)) == {name for name, task in TASKS.items() if hasattr(task, "kind")}

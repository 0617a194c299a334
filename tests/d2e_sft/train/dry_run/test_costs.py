"""How long a run would take, and its heaviest micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import TrainSection, load_recipe
from d2e_sft.model.packing_support import Layout
from d2e_sft.train.checks import count_steps
from d2e_sft.train.dry_run.plan import Speed, draw
from d2e_sft.train.dry_run.report import hours


def test_time_is_micro_batches_and_optimiser_steps() -> None:
    train = TrainSection(output_dir="x", batch_size=8, per_device_train_batch_size=4, num_train_epochs=2)
    steps = count_steps(train, samples=18, processes=1)
    assert (steps.micro_batches, steps.per_epoch, steps.total) == (5, 3, 6)
    assert Speed(per_micro_batch=2.0, per_step=0.5, micro_batches=1).of_run(steps) == 10 * 2.0 + 6 * 0.5
    steps = count_steps(train.model_copy(update={"max_steps": 4}), 18, 1)  # the last of each epoch has one micro-batch
    assert Speed(per_micro_batch=2.0, per_step=0.0, micro_batches=1).of_run(steps) == (5 + 2) * 2.0


@pytest.mark.parametrize(("seconds", "text"), [(12.3, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_times_are_readable(seconds: float, text: str) -> None:
    assert hours(seconds) == text


@pytest.mark.parametrize(("packing", "heaviest"), [("batched", "wide"), ("shared_batch", "full")])
def test_the_heaviest_micro_batch_is_of_what_costs_in_its_layout(
    recipe_file: Path, packing: str, heaviest: str
) -> None:
    wide = {"original": [1] * 50, "imagined": [2] * 10, "refined": [3] * 10, "answer": [4]}
    full = {"original": [1] * 40, "imagined": [2] * 40, "refined": [3] * 40, "answer": [4]}
    recipe = load_recipe(recipe_file, ["train.batch_size=1", "train.per_device_train_batch_size=1"])
    layout: Any = Layout(packing, "sdpa")  # type: ignore[arg-type]
    drawn = draw(recipe, [wide, full], layout, count_steps(recipe.train, 2, 1))
    assert drawn.heaviest == [["wide", "full"].index(heaviest)]
    # The refined view is the original one, so it costs nothing: 2 × 50 tokens of the wider row against 3 × 40.
    equal = {**wide, "refined": wide["original"]}
    assert draw(recipe, [equal, full], layout, count_steps(recipe.train, 2, 1)).heaviest == [1]

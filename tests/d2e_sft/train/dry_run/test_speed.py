"""How long a run would take: the arithmetic of a measured speed."""

from __future__ import annotations

import pytest

from d2e_sft.config.recipe import TrainSection
from d2e_sft.train.dry_run.costs import Speed, hours, seconds_in_all
from d2e_sft.train.prepare import count_steps


def test_time_is_micro_batches_and_optimiser_steps() -> None:
    train = TrainSection(output_dir="x", batch_size=8, per_device_train_batch_size=4, num_train_epochs=2)
    steps = count_steps(train, samples=18, processes=1)
    assert (steps.micro_batches, steps.per_epoch, steps.total) == (5, 3, 6)
    assert seconds_in_all(Speed(per_micro_batch=2.0, per_step=0.5, micro_batches=1), steps) == 10 * 2.0 + 6 * 0.5
    assert count_steps(train.model_copy(update={"max_steps": 4}), 18, 1).micro_batches_in_all == 5 + 2


@pytest.mark.parametrize(("seconds", "text"), [(12.3, "12 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_times_are_readable(seconds: float, text: str) -> None:
    assert hours(seconds) == text

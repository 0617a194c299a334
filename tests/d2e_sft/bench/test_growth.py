"""`d2e bench growth`: estimates without weights that are those of a model with them."""

from __future__ import annotations

import torch

from d2e_sft.bench.engines import synthetic_rows
from d2e_sft.bench.growth import Point, _estimate, as_table, points
from d2e_sft.bench.shapes import random_model
from d2e_sft.config.recipe import D2ESection, TrainSection
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.train.dry_run.memory import estimate_memory

TINY = Point("tiny", context=60, samples=3, vocabulary=300)


def test_a_model_without_weights_takes_what_one_with_weights_takes() -> None:
    row = _estimate("context", TINY, "float32")
    model, d2e = random_model("tiny", torch.device("cpu")), D2ESection()
    layout = choose_layout(model, d2e)
    batch = collator_for(layout, d2e, model.config)(synthetic_rows(3, 60, 300))
    train = TrainSection(output_dir="unused", bf16=False)
    real = estimate_memory(model, d2e, layout, batch, train, 2, torch.device("cpu"))
    assert row.tokens == batch["input_ids"].numel()
    assert row.activations_mib == round(real.activations / 2**20, 1)
    assert row.weights_mib == round(real.weights / 2**20, 1)
    assert row.checkpointed_activations_mib < row.activations_mib
    assert row.sft_activations_mib < row.activations_mib


def test_each_row_changes_one_quantity_of_the_base() -> None:
    base = Point()
    for grows, point in points():
        changed = {name for name, value in vars(point).items() if value != getattr(base, name)}
        allowed = {"shape", "vocabulary"} if grows == "model" else {grows}
        assert changed <= allowed
    row = _estimate("context", TINY, "float32")
    assert len(as_table([row, row]).frame) == 1, "a point that is on several lists is shown once"

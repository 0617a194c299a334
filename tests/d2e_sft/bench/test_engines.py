"""The engines of `d2e bench train`: they compute the same, and their floors count real tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.bench.engines import ENGINES, SFT, Engine, synthetic_rows, token_floor
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import PackedCollator, Row
from d2e_sft.model.packing_support import choose_layout
from tests.tiny import VOCAB_SIZE, tiny_model


def _tokens(engine: Engine, rows: list[Row]) -> int:
    views = (SFT if engine.is_sft else D2ESection()).views
    computed = [
        (view, row)
        for view in views
        for row in rows
        if view == "original" or engine.computes_all or row[view] != row["original"]
    ]
    if engine.packed:
        packed = PackedCollator(views, share_across_samples=engine.shares_samples)(rows)
        # An answer's last token predicts nothing and is not computed; the floor counts it.
        return int(packed["input_ids"].numel()) + len(computed)
    return sum(len(row[view]) + len(row["answer"]) for view, row in computed)


@pytest.mark.parametrize("unrefined", [0, 2])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_the_floor_counts_the_tokens_that_the_engine_computes(engine: Engine, unrefined: int) -> None:
    rows = synthetic_rows(3, 50, vocabulary=10_000, unrefined=unrefined)
    floor = token_floor(engine, 3, 50, "all", unrefined=unrefined)
    assert floor == pytest.approx(_tokens(engine, rows), abs=len(rows))


def test_the_floors_of_the_published_shapes() -> None:
    by_name = {engine.name: engine for engine in ENGINES}
    ratios = []
    for context in (150, 350, 700):
        sft = token_floor(by_name["sft"], 1, context, "all")
        ratios.append([token_floor(by_name["shared_prefix"], 1, context, view) / sft for view in ("all", "original")])
    # Worked by hand: 460/320, 740/520, 1230/870; without gradient 140, 220 and 360 tokens count a third.
    for (everything, original), expected in zip(
        ratios, [(1.4375, 1.1458), (1.4231, 1.1410), (1.4138, 1.1379)], strict=True
    ):
        assert (everything, original) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("unrefined", [0, 2, 3])
@pytest.mark.parametrize("view_gradients", ["all", "original"])
def test_all_engines_compute_one_loss_and_one_gradient(view_gradients: Any, unrefined: int) -> None:
    rows = synthetic_rows(3, 20, VOCAB_SIZE, unrefined=unrefined)
    results: dict[bool, list[tuple[float, torch.Tensor]]] = {True: [], False: []}
    for engine in ENGINES:
        model = tiny_model("llama", seed=3)
        layout = choose_layout(model, D2ESection(), "shared_batch")
        model.set_attn_implementation(layout.attention if engine.packed else "sdpa")
        loss = engine.loss(model, rows, SFT if engine.is_sft else D2ESection(view_gradients=view_gradients))
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results[engine.is_sft].append((loss.item(), gradients))
    for group in results.values():
        for loss_value, gradients in group[1:]:
            assert loss_value == pytest.approx(group[0][0], rel=1e-5)
            assert (gradients - group[0][1]).norm() < 1e-5 * group[0][1].norm()

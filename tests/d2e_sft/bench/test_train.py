"""`d2e bench train`: engines that compute the same, floors that count real tokens, rows as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.bench.engines import ENGINES, SFT, Engine, synthetic_rows, token_floor
from d2e_sft.bench.peak_memory import PeakMemory
from d2e_sft.bench.train import _Case, _compare
from d2e_sft.cli import run
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import BatchedCollator, PackedCollator, Row
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.util.errors import UserError
from tests.tiny import VOCAB_SIZE, save_tiny_model, tiny_model


def _tokens(engine: Engine, rows: list[Row]) -> int:
    views = (SFT if engine.is_sft else D2ESection()).views
    if engine.packed:
        packed = PackedCollator(views, share_across_samples=engine.shares_samples)(rows)
        # An answer's last token predicts nothing and is not computed; the floor counts it.
        return int(packed["input_ids"].numel()) + len(views) * len(rows)
    return int(sum(BatchedCollator([view], 0)(rows)["input_ids"].numel() + len(rows) for view in views))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_the_floor_counts_the_tokens_that_the_engine_computes(engine: Engine) -> None:
    rows = synthetic_rows(3, 50, vocabulary=10_000)
    assert token_floor(engine, 3, 50, "all") == pytest.approx(_tokens(engine, rows), abs=len(rows))


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


@pytest.mark.parametrize("view_gradients", ["all", "original"])
def test_all_engines_compute_one_loss_and_one_gradient(view_gradients: Any) -> None:
    rows = synthetic_rows(3, 20, VOCAB_SIZE)
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


def test_ratios_are_medians_over_the_baseline_that_shares_as_much() -> None:
    by_name = {engine.name: engine for engine in ENGINES}

    def case(name: str, seconds: list[float], peak: float) -> _Case:
        engine = by_name[name]
        return _Case(engine, SFT if engine.is_sft else D2ESection(), [], seconds, peak=peak)

    cases = [
        case("sft_plain", [4.0, 5.0, 90.0], 100),
        case("sft_shared", [2.0, 1.0, 2.0], 60),
        case("shared_batch", [3.0, 3.0, 1.0], 110),
    ]
    plain, shared, d2e = _compare(cases, context=150, samples=8)
    assert (plain.median_ms, plain.ratio_to_sft, plain.ratio_to_sft_plain) == (5000, 1, 1)
    assert (shared.ratio_to_sft, shared.ratio_to_sft_plain) == (1, 0.4)
    assert (d2e.ratio_to_sft, d2e.ratio_to_sft_plain, d2e.peak_to_sft_plain) == (1.5, 0.6, 1.1)
    assert d2e.floor_ratio == pytest.approx((130 + 8 * 330) / (130 + 8 * 190), abs=1e-3)


def test_the_command_writes_a_row_for_each_engine_and_gradient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(tmp_path / "model")
    file = tmp_path / "out" / "bench.json"
    options = ["--contexts", "12,20", "--samples", "2", "--unshared-samples", "1", "--repeats", "1"]
    run(["bench", "train", "--model", str(model), *options, "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    assert {(row["engine"], row["view_gradients"], row["context"]) for row in rows} == {
        (engine.name, gradients, context)
        for engine in ENGINES
        for gradients in (("all",) if engine.is_sft else ("all", "original"))
        for context in (12, 20)
    }
    for row in rows:
        assert row["median_ms"] > 0
        # A model this small takes less than what the process gives back meanwhile, so the figure may be negative.
        assert abs(row["peak_mb"]) < 2000
        assert {"ratio_to_sft", "ratio_to_sft_plain", "floor_ratio", "tokens", "samples"} <= row.keys()
    table = capsys.readouterr().out
    assert table.count("shared_batch") == 4


def test_a_model_that_cannot_be_packed_is_not_measured(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model", "bloom")
    with pytest.raises(UserError, match=r"train\.packing=shared_batch: not exact here"):
        run(["bench", "train", "--model", str(model), "--contexts", "12", "--repeats", "1"])


@pytest.mark.skipif(torch.accelerator.is_available(), reason="measures the process, where there is no device")
def test_peak_memory_sees_what_was_freed_since() -> None:
    memory = PeakMemory()
    memory.reset()
    before = memory.peak_mb()
    held = torch.ones(50 * 2**18)  # 50 MB
    del held
    assert 45 < memory.peak_mb() - before < 60
    memory.reset()
    assert memory.peak_mb() - before < 20

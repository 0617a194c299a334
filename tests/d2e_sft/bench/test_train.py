"""`d2e bench train`: engines that compute the same, floors that count real tokens, rows as documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.bench.engines import ENGINES, SFT
from d2e_sft.bench.step_rows import Case, compare
from d2e_sft.config.recipe import D2ESection
from tests.command import output_of, refusal_of
from tests.tiny import save_tiny_model


def test_ratios_are_medians_over_the_baseline_that_shares_as_much() -> None:
    by_name = {engine.name: engine for engine in ENGINES}

    def case(name: str, seconds: list[float], peak: float) -> Case:
        engine = by_name[name]
        return Case(engine, SFT if engine.is_sft else D2ESection(), [], seconds, peak=peak)

    cases = [
        case("sft_plain", [4.0, 5.0, 90.0], 100),
        case("sft_shared", [2.0, 1.0, 2.0], 60),
        case("shared_batch", [3.0, 3.0, 1.0], 110),
    ]
    plain, shared, d2e = compare(cases, context=150, samples=8)
    assert (plain.median_ms, plain.ratio_to_sft, plain.ratio_to_sft_plain) == (5000, 1, 1)
    assert (shared.ratio_to_sft, shared.ratio_to_sft_plain) == (1, 0.4)
    assert (d2e.ratio_to_sft, d2e.ratio_to_sft_plain, d2e.peak_to_sft_plain) == (1.5, 0.6, 1.1)
    assert d2e.floor_ratio == pytest.approx((130 + 8 * 330) / (130 + 8 * 190), abs=1e-3)


def test_the_command_writes_a_row_for_each_engine_and_gradient(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    file = tmp_path / "out" / "bench.json"
    options = ["--contexts", "12,20", "--samples", "2", "--unshared-samples", "1", "--repeats", "1"]
    table = output_of("bench", "train", "--model", model, *options, "--json", file)
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
    assert table.count("shared_batch") == 4


def test_chosen_engines_are_measured_and_profiled_with_their_baselines(tmp_path: Path) -> None:
    model, file = save_tiny_model(tmp_path / "model"), tmp_path / "bench.json"
    options = ["--contexts", "12", "--samples", "2", "--repeats", "1", "--engines", "shared_batch", "--profile"]
    printed = output_of("bench", "train", "--model", model, *options, "--unrefined", "0.5", "--json", file)
    assert "unrefined" in printed
    rows = json.loads(file.read_text())["rows"]
    assert {row["unrefined"] for row in rows} == {1}
    # A prefix of 130, two contexts of 12 with question and answer (40); then two imagined views and a refined one.
    assert [row["tokens"] for row in rows[:2]] == [130 + 2 * 52, 130 + 2 * 52 + 3 * 40 + round(0.4 * 12)]
    assert [row["engine"] for row in rows] == ["sft_shared", "shared_batch", "shared_batch"]
    assert {row["ratio_to_sft_plain"] for row in rows} == {None}
    for row in rows:
        assert row["ratio_to_sft"] > 0
        by_kind = row["time_by_kind"]
        assert sum(by_kind.values()) == pytest.approx(1)
        assert min(by_kind["matrix products"], by_kind["attention"], by_kind["elementwise and sums"]) > 0


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("llama", ["--engines", "shared_bach"], "Did you mean 'shared_batch'"),
        ("llama", ["--unrefined", "66"], "'--unrefined'"),
        ("bloom", ["--repeats", "1"], "train.packing=shared_batch: not exact here"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, kind: str, options: list[str], said: str) -> None:
    model = save_tiny_model(tmp_path / "model", kind)
    assert said in refusal_of("bench", "train", "--model", model, "--contexts", "12", *options)

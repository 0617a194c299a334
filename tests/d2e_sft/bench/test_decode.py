"""`d2e bench decode` and `samples` on a tiny model: what they print and write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from d2e_sft.bench.decode import SAMPLE_VARIANTS, bench_decoding, decoding_table
from d2e_sft.decoding import Output
from tests.command import output_of
from tests.factories import bench_rows, save_bench
from tests.tiny import save_tiny_model


def test_every_combination_is_a_row_and_the_debiased_tokens_are_those_of_guidance(tmp_path: Path) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "new" / "bench.json"
    sizes = ["--prompts", "170,200", "--batches", "1,3", "--new-tokens", "2,7", "--repeats", "1"]
    printed = output_of("bench", "decode", "--model", model, *sizes, "--json", target)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [(row["prompt"], row["batch"], row["new_tokens"]) for row in rows] == [
        (prompt, batch, new) for prompt in (170, 200) for batch in (1, 3) for new in (2, 7)
    ]
    for row in rows:
        assert row["same_tokens"] == 1
        assert row["debiased_to_plain"] == pytest.approx(row["debiased_ms"] / row["plain_ms"], rel=0.1)
        assert row["debiased_to_guidance"] == pytest.approx(row["debiased_ms"] / row["guidance_ms"], rel=0.1)
    assert printed.count("100%") == len(rows)


def test_in_vllm_both_variants_take_turns_from_an_empty_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    model = SimpleNamespace(get_vocab_size=lambda: 500)
    llm = SimpleNamespace(
        llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model)),
        reset_prefix_cache=lambda: calls.append("reset"),
    )

    def generate(llm: Any, pairs: Any, decoding: Any, **options: Any) -> list[Output]:
        calls.append((decoding.alpha, len(pairs), {len(pair.original) for pair in pairs}))
        tokens, again = [1] * decoding.max_new_tokens, int(decoding.alpha > 0)
        return [Output(n, None, tokens, True, resubmissions=again * (n == 0)) for n, _ in enumerate(pairs)]

    offline: Any = SimpleNamespace(generate=generate, load_llm=lambda name, **options: llm)
    monkeypatch.setitem(sys.modules, "d2e_sft.vllm.offline", offline)
    monkeypatch.setattr("d2e_sft.vllm.offline", offline, raising=False)
    monkeypatch.setattr("d2e_sft.vllm.engine.require_vllm", lambda: None)
    sizes: Any = {"prompts": [170], "batches": [3], "new_tokens": [5], "repeats": 2, "dtype": "float32"}
    (row,) = bench_decoding("m", **sizes, in_vllm=True)
    assert calls == ["reset", (0.0, 3, {170}), "reset", (0.5, 3, {170})] * 3
    assert (row["prompt"], row["batch"], row["new_tokens"], row["resubmissions"]) == (170, 3, 5, 1)
    assert "guidance ms" not in decoding_table([row]).frame.columns


def test_every_variant_of_a_file_of_samples_has_the_same_answers(tmp_path: Path) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "bench.json"
    file = save_bench(tmp_path / "bench", bench_rows(24)) / "test.parquet"
    options = ["--samples", "20", "--new-tokens", "4", "--repeats", "2", "--json", target]
    printed = output_of("bench", "samples", file, "--model", model, *options)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [row["variant"] for row in rows] == list(SAMPLE_VARIANTS)
    assert [row["samples"] for row in rows] == [20] * 3
    assert [row["same"] for row in rows] == [1] * 3
    assert rows[0]["to_first"] == 1
    for row in rows:
        assert row["samples_per_s"] == pytest.approx(20 / row["cpu_s"], rel=0.2)
    assert printed.count("100.0%") == 3

"""`d2e bench decode` on a tiny model: what it prints and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from d2e_sft.bench.decode import Decoding, as_table, bench_decoding
from tests.command import output_of
from tests.tiny import save_tiny_model

KEYS = {"prompt", "batch", "new_tokens", "plain_ms", "debiased_ms", "guidance_ms", "debiased_to_plain", "debiased_to_guidance"}  # fmt: skip  # noqa: E501


def test_every_combination_is_a_row_and_the_debiased_tokens_are_those_of_guidance(tmp_path: Path) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "new" / "bench.json"
    sizes = ["--prompts", "170,200", "--batches", "1,3", "--new-tokens", "2,7", "--repeats", "1"]
    printed = output_of("bench", "decode", "--model", model, *sizes, "--json", target)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [(row["prompt"], row["batch"], row["new_tokens"]) for row in rows] == [
        (prompt, batch, new) for prompt in (170, 200) for batch in (1, 3) for new in (2, 7)
    ]
    for row in rows:
        assert row.keys() >= KEYS
        assert row["same_tokens"] == 1
        assert row["debiased_to_plain"] == pytest.approx(row["debiased_ms"] / row["plain_ms"], rel=0.1)
    assert printed.count("100%") == len(rows)


def test_in_vllm_both_ways_take_turns_from_an_empty_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    model = SimpleNamespace(get_vocab_size=lambda: 500)
    llm = SimpleNamespace(
        llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model)),
        reset_prefix_cache=lambda: calls.append("reset"),
    )

    def generate(llm: Any, pairs: Any, decoding: Any, **options: Any) -> list[list[int]]:
        calls.append((decoding.alpha, len(pairs), {len(pair.original) for pair in pairs}))
        if decoding.alpha:
            options["on_resubmission"](3)
        return [[1] * decoding.max_new_tokens for _ in pairs]

    offline: Any = SimpleNamespace(generate=generate, load_llm=lambda name, **options: llm)
    monkeypatch.setitem(sys.modules, "d2e_sft.vllm.offline", offline)
    monkeypatch.setattr("d2e_sft.vllm.offline", offline, raising=False)
    monkeypatch.setattr("d2e_sft.vllm.engine.require_vllm", lambda: None)
    (row,) = bench_decoding("m", Decoding([170], [3], [5], repeats=2, dtype="float32"), in_vllm=True)
    assert calls == ["reset", (0.0, 3, {170}), "reset", (0.5, 3, {170})] * 3
    assert (row.prompt, row.batch, row.new_tokens, row.resubmissions) == (170, 3, 5, 1)
    assert "guidance ms" not in as_table([row]).frame.columns

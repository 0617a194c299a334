"""The speed test of vLLM on an engine that is played: prompts, turns, medians."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from d2e_sft.bench import vllm_throughput
from d2e_sft.bench.vllm_throughput import PREFIX, QUESTION, as_table, bench_vllm


class _Engine:
    """Remembers what it was asked, on a clock that a debiased run moves by four seconds, a plain one by two."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.asked: list[tuple[float, list[list[int]], list[list[int]]]] = []
        self.resets = 0
        config = SimpleNamespace(
            model_config=SimpleNamespace(dtype="torch.bfloat16", get_vocab_size=lambda: 500),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
            cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=16, num_gpu_blocks=10),
        )
        self.llm_engine = SimpleNamespace(vllm_config=config)

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def generate(self, llm: Any, pairs: Any, decoding: Any, **options: Any) -> list[list[int]]:
        self.asked.append((decoding.alpha, [p.original for p in pairs], [p.imagined for p in pairs]))
        self.seconds += 4 if decoding.alpha else 2
        if decoding.alpha:
            options["on_resubmission"](3)
        return [[1] * decoding.max_new_tokens for _ in pairs]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> _Engine:
    engine = _Engine()
    monkeypatch.setitem(
        sys.modules,
        "d2e_sft.vllm.offline",
        SimpleNamespace(generate=engine.generate),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(vllm_throughput.time, "perf_counter", lambda: engine.seconds)
    return engine


def test_both_ways_take_turns_from_an_empty_cache_and_the_first_round_is_not_counted(engine: _Engine) -> None:
    said: list[str] = []
    measured = bench_vllm(
        engine, prompts=3, shortest=80, longest=90, new_tokens=5, repeats=2, alpha=0.5, progress=said.append
    )
    assert [alpha for alpha, _, _ in engine.asked] == [0.0, 0.5] * 3
    assert engine.resets == 6
    assert said[:3] == ["plain: 2.0 s (not counted)", "debiased: 4.0 s (not counted)", "plain: 2.0 s"]
    assert (measured.plain_s, measured.debiased_s, measured.debiased_to_plain) == (2.0, 4.0, 2.0)
    assert (measured.plain_tokens_per_s, measured.debiased_tokens_per_s) == (7.5, 3.75)
    assert (measured.resubmissions, measured.engine["dtype"]) == (1, "bfloat16")
    assert as_table(measured).notes == ["debiased / plain: 2.00; resubmissions: 1"]


def test_imagined_prompts_are_the_originals_without_their_contexts(engine: _Engine) -> None:
    bench_vllm(engine, prompts=4, shortest=80, longest=90, new_tokens=1, repeats=1)
    _, originals, imagined = engine.asked[0]
    assert all(80 <= len(prompt) <= 90 for prompt in originals)
    assert imagined == [prompt[:PREFIX] + prompt[-QUESTION:] for prompt in originals]
    assert len({tuple(prompt[:PREFIX]) for prompt in originals}) == 1
    assert len({tuple(prompt) for prompt in imagined}) == 4

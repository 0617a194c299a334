"""A token budget and a cache so small that chunked prefill and preemption split pairs: the answers stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from d2e_sft.decoding import DecodingConfig, finished
from d2e_sft.vllm.offline import RequestBatch, generate, requests_of
from d2e_sft.vllm.pairing import Draw
from tests.d2e_sft.vllm.reference import NEW_TOKENS, STOPS, Pairs, assert_equal, decode_reference, mixed_pairs

# 96 tokens a step for prompts of up to 600; a cache of 25 blocks of 32 tokens for up to 64 rows.
ENGINE: dict[str, Any] = {
    "max_num_batched_tokens": 96,
    "max_num_seqs": 64,
    "block_size": 32,
    "num_gpu_blocks_override": 25,
    "disable_log_stats": False,
}
pytestmark = pytest.mark.timeout(1800)


def _preemptions(llm: Any) -> int:
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def test_pairs_that_chunked_prefill_splits_are_submitted_again_and_answer_the_same(llm: Any, in_process: Any) -> None:
    pairs = decode_reference(in_process.model, mixed_pairs(in_process.tokenizer, 40, seed=3))
    decoding = DecodingConfig(max_new_tokens=NEW_TOKENS)
    outputs = finished(generate(llm, pairs.prompts, decoding, stop_ids=STOPS))
    answers, resubmitted = [one.tokens for one in outputs], sum(one.resubmissions for one in outputs)
    print(f"resubmissions: {resubmitted}; preemptions: {_preemptions(llm)}")
    assert max(len(pair.original) for pair in pairs.prompts) > 4 * 96
    assert_equal(in_process.model, pairs, answers, range(40))
    assert resubmitted


def test_pairs_split_by_preemption_answer_the_same(llm: Any, in_process: Any, prompts: Pairs) -> None:
    # Several short prompts fit at first, and their answers outgrow the cache.
    chosen = [pair for pair in prompts.prompts if pair.alpha == 0.5 and len(pair.original) < 80][:12]
    pairs = decode_reference(in_process.model, Pairs(chosen), new_tokens=40)
    before = _preemptions(llm)
    decoding = DecodingConfig(max_new_tokens=40)
    outputs = finished(generate(llm, chosen, decoding, stop_ids=STOPS))
    answers, resubmitted = [one.tokens for one in outputs], sum(one.resubmissions for one in outputs)
    preemptions = _preemptions(llm) - before
    print(f"resubmissions: {resubmitted}; preemptions: {preemptions}")
    assert_equal(in_process.model, pairs, answers, range(len(chosen)))
    assert resubmitted
    assert preemptions > 0


def test_draws_do_not_depend_on_how_a_pair_was_scheduled(llm: Any, prompts: Pairs) -> None:
    chosen = [pair for pair in prompts.prompts if pair.alpha and len(pair.original) < 300][:16]
    requests = requests_of(llm, chosen, DecodingConfig(max_new_tokens=NEW_TOKENS), STOPS)

    def decode(places: list[int], seed: int) -> list[list[int]]:
        drawn = [replace(requests[i], draw=Draw(1.0, seed=seed + i, top_p=0.9)) for i in places]
        return [output.tokens for output in finished(RequestBatch(llm, drawn).run())]

    together = decode(list(range(len(chosen))), 0)
    alone = [decode([i], 0)[0] for i in range(len(chosen))]
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    assert same >= len(chosen) - 1, "a draw at the edge of float32 may flip one"
    assert decode(list(range(len(chosen))), 1000) != together

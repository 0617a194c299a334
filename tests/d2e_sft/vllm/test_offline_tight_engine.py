"""A token budget and a cache so small that chunked prefill and preemption split pairs: the answers stay the same."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from d2e_sft.decoding import DecodingConfig, decode_prompts
from d2e_sft.vllm.offline import generate_debiased
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
    resubmitted: list[int] = []
    answers = generate_debiased(
        llm,
        pairs.originals,
        pairs.imagined,
        DecodingConfig(max_new_tokens=NEW_TOKENS),
        alpha=pairs.alphas,
        stop_ids=STOPS,
        on_resubmission=resubmitted.append,
    )
    print(f"resubmissions: {len(resubmitted)}; preemptions: {_preemptions(llm)}")
    assert max(map(len, pairs.originals)) > 4 * 96
    assert_equal(in_process.model, pairs, answers, range(40))
    assert resubmitted


def test_pairs_that_preemption_splits_are_submitted_again_and_answer_the_same(
    llm: Any, in_process: Any, prompts: Pairs
) -> None:
    # Short prompts of which several pairs fit at first, and answers that outgrow the cache.
    chosen = [i for i in range(200) if prompts.alphas[i] == 0.5 and len(prompts.originals[i]) < 80][:12]
    originals, imagined = [prompts.originals[i] for i in chosen], [prompts.imagined[i] for i in chosen]
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=40), "stop_ids": []}
    resubmitted: list[int] = []
    before = _preemptions(llm)
    answers = generate_debiased(llm, originals, imagined, **options, on_resubmission=resubmitted.append)
    expected = decode_prompts(in_process.model, originals, imagined, **options)
    preemptions = _preemptions(llm) - before
    print(f"resubmissions: {len(resubmitted)}; preemptions: {preemptions}")
    record = Pairs(originals, imagined, [0.5] * len(chosen), expected)
    assert_equal(in_process.model, record, answers, range(len(chosen)))
    assert resubmitted
    assert preemptions > 0


def test_draws_do_not_depend_on_how_a_pair_was_scheduled(llm: Any, prompts: Pairs) -> None:
    chosen = [i for i in range(200) if prompts.alphas[i] > 0 and len(prompts.originals[i]) < 300][:16]

    resubmitted: list[int] = []

    def decode(indices: list[int], seed: int) -> list[list[int]]:
        return generate_debiased(
            llm,
            [prompts.originals[i] for i in indices],
            [prompts.imagined[i] for i in indices],
            DecodingConfig(alpha=0.5, max_new_tokens=NEW_TOKENS),
            stop_ids=STOPS,
            on_resubmission=resubmitted.append,
            draws=[Draw(1.0, seed=seed + i, top_p=0.9) for i in indices],
        )

    together = decode(chosen, 0)
    print(f"resubmissions: {len(resubmitted)}")
    alone = [decode([i], 0)[0] for i in chosen]
    same = sum(a == b for a, b in zip(together, alone, strict=True))
    assert same >= len(chosen) - 1, "a draw at the edge of float32 may flip one"
    assert decode(chosen, 1000) != together

"""Rows of a batch: an answer depends neither on the rest of it, nor on how its rows are computed; prompts refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, PromptPair, cache, generate, generate_debiased, rows, token_pairs
from tests.d2e_sft.decoding.pairs import (
    DECODING,
    KINDS,
    PREFIX,
    decoded_alone,
    generated,
    prefixed_case,
    random_prompts,
    watch_inputs,
)
from tests.tiny import VOCAB_SIZE, tiny_model


@pytest.mark.parametrize("kind", KINDS)
def test_answers_do_not_depend_on_batch_size_order_and_groups(kind: str) -> None:
    model, pairs, stops = prefixed_case(kind)
    one, three, five = (replace(DECODING, batch_size=size) for size in (1, 3, 5))
    by_one = generated(model, pairs, one, stop_ids=stops)
    by_three = generated(model, pairs, three, stop_ids=stops)
    backwards = generated(model, pairs[::-1], five, stop_ids=stops)[::-1]
    grouped = generated(model, [replace(pair, group=i % 2) for i, pair in enumerate(pairs)], three, stop_ids=stops)
    assert by_one == by_three == backwards == grouped == decoded_alone(model, pairs, stops)
    assert len({len(answer) for answer in by_one}) > 2, "the case needs pairs that finish at different steps"


def test_each_pair_has_its_alpha_and_those_without_context_no_imagined_row() -> None:
    model, pairs, stops = prefixed_case("llama")
    pairs[2] = replace(pairs[2], imagined=list(pairs[2].original))  # no context to remove
    alphas = [0.0, 0.5, 1.5, 2.0, 0.0, 0.3, 1.0, 0.5]
    pairs = [replace(pair, alpha=alpha) for pair, alpha in zip(pairs, alphas, strict=True)]
    shapes = watch_inputs(model)
    generated(model, pairs, replace(DECODING, max_new_tokens=2), stop_ids=[])
    assert shapes[2] == (8 + 5, 1), "after prefix and prompts; three pairs have α = 0 or equal prompts"
    mixed = generated(model, pairs, DECODING, stop_ids=stops)
    assert mixed == decoded_alone(model, pairs, stops)
    plain = PromptPair(pairs[2].original)
    assert [mixed[2]] == generated(model, [plain], replace(DECODING, alpha=0), stop_ids=stops)


def test_the_common_prefix_goes_through_the_model_once_for_all_batches() -> None:
    model, pairs, _ = prefixed_case("llama")
    shapes = watch_inputs(model)
    generated(model, pairs, DecodingConfig(batch_size=2, alpha=0.5, max_new_tokens=1))
    own = sum(len(prompt) - len(PREFIX) for pair in pairs for prompt in (pair.original, pair.imagined))
    assert shapes[0] == (1, len(PREFIX))
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own


def test_without_imagined_prompts_two_lists_are_decoded_plainly() -> None:
    prompts, plainly = [[7, 8], [9]], DecodingConfig(alpha=0.0)
    found = generate_debiased(tiny_model(), prompts, stop_ids=[])
    assert found == generated(tiny_model(), [PromptPair(one) for one in prompts], plainly, stop_ids=[])


@pytest.mark.parametrize("given", [torch.tensor([[7, 8]]), [torch.tensor([7, 8])], [[7, 8]], ((7, 8),)])
def test_a_prompt_may_be_a_tensor(given: Any) -> None:
    [pair] = token_pairs(given, given)
    assert (list(pair.original), list(pair.imagined or ())) == ([7, 8], [7, 8])


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_dense_attention_of_rows_and_a_prefill_in_chunks_give_the_same_answers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pairs, stops = prefixed_case(kind)
    answers = generated(model, pairs, DECODING, stop_ids=stops)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_can_cascade", lambda *_: False)
        assert generated(model, pairs, DECODING, stop_ids=stops) == answers
    monkeypatch.setattr(cache, "PREFILL_TOKENS", 20)
    assert generated(model, pairs, DECODING, stop_ids=stops) == answers


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")
@pytest.mark.parametrize(("kind", "backend"), [("llama", "inductor"), ("gemma3", "aot_eager")])
def test_a_compiled_step_over_static_rows_gives_the_same_answers(
    kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds are traced without a graph break; kernels are compiled for one only, which takes 20 s."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    rows._compiled_next_states.cache_clear()
    model, pairs, stops = prefixed_case(kind)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = generated(model, pairs, replace(DECODING, compiled=True), stop_ids=stops)
    assert compiled == generated(model, pairs, DECODING, stop_ids=stops)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


OTHER_PREFIX = list(range(60, 85))


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_rows_of_several_groups_run_together_and_none_after_its_end(kind: str) -> None:
    model = tiny_model(kind, seed=1)
    prompts = [
        (random_prompts(20, 5, 60, seed, prefix), random_prompts(20, 3, 9, seed + 1, prefix))
        for seed, prefix in ((3, PREFIX), (5, OTHER_PREFIX))
    ]
    originals, imagined = ([*first, *second] for first, second in zip(*prompts, strict=True))
    pairs = [replace(pair, group=place // 20) for place, pair in enumerate(token_pairs(originals, imagined))]
    pairs[7] = replace(pairs[7], imagined=list(pairs[7].original))  # decoded plainly, with one row
    stops = range(VOCAB_SIZE // 5)
    alone = generated(model, pairs, replace(DECODING, batch_size=1), stop_ids=stops)
    shapes = watch_inputs(model)
    together = generated(model, pairs, replace(DECODING, batch_size=32), stop_ids=stops)
    assert together == alone
    steps = [rows for rows, length in shapes if length == 1]
    # The first token comes from the prompt; a stop token takes a step, too.
    taken = [len(answer) + (len(answer) < DECODING.max_new_tokens) - 1 for answer in together]
    assert sum(steps) == sum(count * (1 if place == 7 else 2) for place, count in enumerate(taken))
    assert max(steps) <= 64
    one_after_another = sum(max(taken[first : first + 20]) for first in (0, 20))
    assert len(steps) < one_after_another


def test_memory_limits_how_many_run_and_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case("llama", 24)
    decoding = DecodingConfig(max_new_tokens=12)
    free = generated(model, pairs, decoding, stop_ids=stops)
    cache = model(model.dummy_inputs["input_ids"], use_cache=True).past_key_values
    stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    token_bytes = stored / model.dummy_inputs["input_ids"].numel()
    weights = sum(weight.nbytes for weight in model.parameters()) + sum(buffer.nbytes for buffer in model.buffers())
    tokens = 600  # a pair takes at most 90 + 39 + 24
    monkeypatch.setattr(rows, "total_memory", lambda device: weights + 4 * tokens * token_bytes)
    limits = rows.budget_of(model, decoding)
    assert (limits.pairs, limits.batch, limits.tokens) == (64, 16, pytest.approx(tokens))
    batches = [indices for indices, _ in rows.batches_of(pairs, limits, group_batch_size=16)]
    cost = [len(pair.original) + len(pair.imagined or ()) + 24 for pair in pairs]
    assert all(2 * sum(cost[i] for i in indices) <= tokens for indices in batches)
    shapes = watch_inputs(model)
    assert generated(model, pairs, decoding, stop_ids=stops) == free
    assert max(rows for rows, length in shapes if length == 1) <= 2 * tokens // min(cost)
    monkeypatch.setattr(rows, "total_memory", lambda device: 0)
    assert generated(model, pairs, decoding, stop_ids=stops) == free, "one pair at a time"
    assert rows.budget_of(model, replace(decoding, batch_size=5)).pairs == 5, "what is given counts"


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, pairs, _ = prefixed_case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generated(model, pairs, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


def test_the_models_attention_is_restored_even_if_nobody_takes_the_next_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    model.set_attn_implementation("eager")
    outputs = generate(model, None, pairs, DECODING)
    next(outputs)
    assert model.config._attn_implementation != "eager"
    assert not torch.is_inference_mode_enabled()
    outputs.close()  # type: ignore[attr-defined]
    assert model.config._attn_implementation == "eager"


def test_an_imagined_prompt_of_several_samples_is_computed_once_but_for_its_last_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    same = [replace(pair, imagined=[*PREFIX, *range(50, 90)]) for pair in pairs]
    shapes = watch_inputs(model)
    generated(model, same, DecodingConfig(max_new_tokens=1))
    own = sum(len(pair.original) - len(PREFIX) for pair in pairs)
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own + 39 + 8

"""Prompts enter as others end: no row runs in vain, no answer changes, and memory decides how many run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from d2e_sft.decoding import DecodingConfig, rows, token_pairs
from tests.d2e_sft.decoding.pairs import DECODING, PREFIX, generated, prefixed_case, random_prompts, watch_inputs
from tests.tiny import VOCAB_SIZE, tiny_model

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

"""Micro-batches by tokens: how a step is cut, and that the cut changes nothing but the cut."""

from __future__ import annotations

import random
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import BatchedCollator, PackedCollator, Row
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import (
    REPEATED,
    MicroBatchRows,
    StepCollator,
    TokenBudgetSteps,
    TokenCosts,
    cut_by_tokens,
)

D2E = D2ESection()
VIEWS = D2E.views


def rows(count: int, seed: int = 0) -> list[Row]:
    """Samples of uneven lengths that all begin with the same twenty tokens; every third is refined to the whole."""
    source = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [source.randrange(1, 1000) for _ in range(source.randint(low, high))]

    prefix, found = some(20, 20), []
    for number in range(count):
        context, question = some(0, 200), some(5, 30)
        kept = len(context) if number % 3 == 1 else len(context) // 2
        found.append(
            {
                "original": [*prefix, *context, *question],
                "imagined": [*prefix, *question],
                "refined": [*prefix, *context[:kept], *question],
                "answer": some(1, 12),
            }
        )
    return found


def test_packed_micro_batches_are_filled_evenly_and_padded_ones_hold_like_lengths() -> None:
    packed = TokenCosts([10, 60, 20, 50, 30, 40])
    assert cut_by_tokens(range(6), packed, budget=110) == [[1, 4, 2], [3, 5, 0]]
    assert cut_by_tokens(range(6), packed, budget=70) == [[1, 0], [3, 2], [5, 4]]
    assert cut_by_tokens(range(6), packed, budget=5) == [[1], [3], [5], [4], [2], [0]], "each too long, each alone"
    shares = TokenCosts([10, 60, 20, 50, 30, 40], shared=8)
    assert shares.of_micro_batch([0, 1]) == 10 + 60 - 8
    padded = TokenCosts([10, 60, 20, 50, 30, 40], views=[3] * 6)
    assert cut_by_tokens(range(6), padded, budget=3 * 2 * 60) == [[1, 3], [5, 4, 2], [0]]
    assert cut_by_tokens(range(2), padded, budget=1000, processes=3) == [[], [1], [0]], "one process has none"
    fewer = TokenCosts([10, 60, 20, 50, 30, 40], views=[3, 2, 3, 2, 2, 3])
    assert fewer.of_micro_batch([1, 3]) == 4 * 60
    assert cut_by_tokens(range(6), fewer, budget=3 * 2 * 60) == [[1, 3], [5, 4, 2], [0]]
    assert cut_by_tokens(range(6), fewer, budget=7 * 60) == [[1, 3, 5], [4, 2, 0]]


@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize(
    "d2e", [D2E, D2ESection(debias=False, view_gradients="original")], ids=["d2e", "one other view"]
)
def test_no_micro_batch_is_laid_out_in_more_tokens_than_the_budget(
    packing: Any, processes: int, d2e: D2ESection
) -> None:
    samples, budget = rows(40), 900
    costs = TokenCosts.of(samples, Layout(packing, "sdpa"), d2e)
    collate: Any = (
        BatchedCollator(d2e.views, 0, d2e.view_gradients)
        if packing == "batched"
        else PackedCollator(d2e.views, packing == "shared_batch", d2e.view_gradients)
    )
    plans = [
        list(TokenBudgetSteps(costs, 16, budget, seed=0, rank=rank, processes=processes)) for rank in range(processes)
    ]
    assert len({tuple(map(len, plan)) for plan in plans}) == 1, "processes run as many forwards"
    parts = [part for plan in plans for step in plan for part in step]
    assert sorted(i for part in parts for i in part) == list(range(40)), "each sample once"
    assert any(len(part) > 1 for part in parts)
    for part in parts:
        laid_out = collate([samples[i] for i in part])["input_ids"].numel() if part else 0
        assert laid_out <= costs.of_micro_batch(part)
        assert laid_out <= budget or len(part) == 1


def test_a_step_has_the_samples_that_the_seed_and_the_epoch_say() -> None:
    costs = TokenCosts.of(rows(20), Layout("shared_batch", "sdpa"), D2E)

    def samples(budget: int, epoch: int = 0, **options: Any) -> list[list[int]]:
        plan = TokenBudgetSteps(costs, 8, budget, **{"seed": 4, **options})
        plan.set_epoch(epoch)
        assert len(plan) == 3
        return [sorted(i for part in step for i in part) for step in plan]

    assert samples(400) == samples(5000) == samples(400)
    assert samples(400, seed=5) != samples(400) != samples(400, epoch=1)
    assert samples(400, epoch=1) == samples(400, seed=5), "as accelerate's seedable sampler draws"


def test_a_micro_batch_without_samples_runs_a_row_that_does_not_count() -> None:
    data = MicroBatchRows(rows(3))
    step = StepCollator(PackedCollator(VIEWS))([data[[1, 2]], data[[]]])
    counted, repeated = step["micro_batches"]
    assert REPEATED not in counted
    assert repeated[REPEATED]
    assert step["labels"].tolist() == counted["labels"].tolist()

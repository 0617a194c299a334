"""The micro-batches of whole steps: which rows a step draws, and that the cut changes nothing but the cut."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Collator, Row
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import TokenCosts
from d2e_sft.train.balance import Balance
from d2e_sft.train.loader import REPEATED, Draws, MicroBatchRows, StepCollator, TokenBudgetSteps

D2E = D2ESection()
VIEWS = D2E.views


def rows(count: int, seed: int = 0, contexts: int = 0) -> list[Row]:
    """Samples of uneven lengths that all begin with the same twenty tokens; every third is refined to the whole.

    Each has a context of its own, or one of some contexts of at least 100 tokens.
    """
    source = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [source.randrange(1, 1000) for _ in range(source.randint(low, high))]

    prefix, found, shared = some(20, 20), list[Row](), [some(100, 200) for _ in range(contexts)]
    for number in range(count):
        which = source.randrange(contexts) if contexts else 0
        context, question = shared[which] if contexts else some(0, 200), some(5, 30)
        kept = len(context) if number % 3 == 1 else len(context) // 2
        found.append(
            {
                "original": [*prefix, *context, *question],
                "imagined": [*prefix, *question],
                "refined": [*prefix, *context[:kept], *question],
                "answer": some(1, 12),
                "context": which + 1 if contexts else 0,
            }
        )
    return found


@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize(
    "d2e", [D2E, D2ESection(debias=False, view_gradients="original")], ids=["d2e", "one other view"]
)
@pytest.mark.parametrize("contexts", [0, 9])
def test_no_micro_batch_is_laid_out_in_more_tokens_than_the_budget(
    packing: Any, processes: int, d2e: D2ESection, contexts: int
) -> None:
    samples, budget = rows(40, contexts=contexts), 900
    costs = TokenCosts.of(samples, Layout(packing, "sdpa"), d2e)
    collate = Collator(packing, d2e.views, d2e.view_gradients)
    plans = [
        list(TokenBudgetSteps(costs, Draws(16, 0, 4 if contexts else 1), budget, rank=rank, processes=processes))
        for rank in range(processes)
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

    def samples(budget: int, epoch: int = 0, seed: int = 4) -> list[list[int]]:
        plan = TokenBudgetSteps(costs, Draws(8, seed), budget)
        plan.epoch = epoch
        assert len(plan) == 3
        return [sorted(i for part in step for i in part) for step in plan]

    assert samples(400) == samples(5000) == samples(400)
    assert samples(400, seed=5) != samples(400) != samples(400, epoch=1)
    assert samples(400, epoch=1) == samples(400, seed=5), "as accelerate's seedable sampler draws"


def test_a_micro_batch_without_samples_runs_a_row_that_does_not_count() -> None:
    data = MicroBatchRows([{**row, "trained": [False, *[True] * (len(row["answer"]) - 1)]} for row in rows(3)])
    step = StepCollator(Collator("shared_batch", VIEWS))([data[[1, 2]], data[[]]])
    counted, repeated = step["micro_batches"]
    assert REPEATED not in counted
    assert repeated[REPEATED]
    assert step["labels"].tolist() == counted["labels"].tolist()


def test_contexts_are_drawn_together_and_each_row_once_an_epoch() -> None:
    # Contexts of 7, 3, 2 and 1 rows, and five rows without one; steps of 4 rows.
    contexts = [*"a" * 7, *"b" * 3, *"c" * 2, "d", *range(5)]
    costs, counts = TokenCosts([1] * 18, contexts=contexts), Counter[tuple[int, int]]()
    for seed in range(3000):
        order = Draws(4, seed, rows_per_context=3).order(costs, epoch=0)
        assert sorted(order) == list(range(18))
        counts.update((row, place // 4) for place, row in enumerate(order))
    # Every row is in every step equally often: 4 of 18 times, in the last, shorter step 2 of 18 times.
    for row in range(18):
        for step in range(5):
            expected = 3000 * (4 if step < 4 else 2) / 18
            assert counts[row, step] == pytest.approx(expected, abs=5 * expected**0.5), (row, step)
    order = Draws(4, 1, rows_per_context=3).order(costs, epoch=0)
    assert order != Draws(4, 1, rows_per_context=3).order(costs, epoch=1)
    start = next(k for k in range(18) if contexts[order[k - 1]] != contexts[order[k]])
    rotated, runs = [contexts[i] for i in (*order[start:], *order[:start])], list[tuple[Any, int]]()
    for key in rotated:
        runs = [*runs[:-1], (key, runs[-1][1] + 1)] if runs and runs[-1][0] == key else [*runs, (key, 1)]
    assert Counter(key for key, _ in runs if key == "a")["a"] <= 4, "7 rows in runs of at most 3"
    assert Draws(4, 1).order(costs, 0) == Draws(8, 1).order(costs, 0), "drawn singly, the order is the usual shuffle"


@pytest.mark.parametrize("share", [0.5, 0.15, 0.9])
@pytest.mark.parametrize("rows_per_context", [1, 3])
def test_a_balanced_epoch_shows_conflict_rows_at_their_share_and_all_of_them_equally(
    share: float, rows_per_context: int
) -> None:
    # 4 conflict and 36 aligned rows, and 10 others; every second row has one of five contexts.
    subsets: list[Any] = ["conflict"] * 4 + ["aligned"] * 36 + ["unknown"] * 5 + [None] * 5
    balance = Balance.of(share, [{"subset": subset} for subset in subsets])
    costs = TokenCosts([1] * 50, contexts=[i % 5 if i % 2 else (i,) for i in range(50)])
    draws, in_all = Draws(8, 1, rows_per_context, balance), Counter[int]()
    for epoch in range(40):
        order = draws.order(costs, epoch)
        counts = Counter(order)
        assert len(order) == 50, "an epoch is as long as before"
        assert sum(counts[i] for i in range(4)) == round(share * 40)
        assert [counts[i] for i in range(40, 50)] == [1] * 10, "rows of neither subset keep their share"
        for subset in (range(4), range(4, 40)):
            shown = [counts[i] for i in subset]
            assert max(shown) - min(shown) <= 1
        assert order == draws.order(costs, epoch), "drawn from the seed and the epoch"
        in_all.update(counts)
    for row in range(40):  # which rows are shown once more differs from epoch to epoch
        expected = 40 * (share * 40 / 4 if row < 4 else (1 - share) * 40 / 36)
        assert in_all[row] == pytest.approx(expected, abs=16), row
    assert draws.order(costs, 0) != draws.order(costs, 1)

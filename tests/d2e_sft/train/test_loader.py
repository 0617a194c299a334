"""Rows become tokens, in the micro-batches and order of an epoch."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import write_samples
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.collation import Collator, Row
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import TokenCosts
from d2e_sft.train.loader import REPEATED, Draws, MicroBatchRows, StepCollator, TokenBudgetSteps
from d2e_sft.train.rows import describe_rows, encode_samples, read_rows
from d2e_sft.train.samples import Balance, choose_samples, probe_groups
from d2e_sft.util.errors import UserError
from tests.factories import make_world, write_recipe
from tests.tiny import make_sample, tiny_tokenizer

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
def test_no_micro_batch_exceeds_the_token_budget(packing: Any, processes: int, d2e: D2ESection, contexts: int) -> None:
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
def test_a_balanced_epoch_shows_all_conflict_rows_equally_often(share: float, rows_per_context: int) -> None:
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


def test_without_contexts_the_original_view_is_the_imagined_one(tmp_path: Path) -> None:
    path = write_recipe(make_world(tmp_path, train=3, bench=0), tmp_path / "run", "d2e.distill=false")
    loaded, recipe = (
        load_model(f"{tmp_path}/model"),
        load_recipe(path, ["data.without_context=true", "d2e.objective=sft"]),
    )
    both = read_rows(load_recipe(path), "training", loaded, progress=False)
    rows = read_rows(recipe, "training", loaded, progress=False)
    assert [item.prompts for item in rows.kept] == [{"original": item.prompts["imagined"]} for item in both.kept]
    assert "  3 whose contexts are left out (data.without_context)" in describe_rows(recipe, "training", rows)


def test_rejected_answers_are_counted_by_source_and_encoded_like_answers(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"rejected": ["a very long and wrong answer"]},
        {"habit": ["the hill"], "subset": "conflict"},
        {"meta": {"swapped": {"from": "the sea", "to": "the river"}}},
        {"habit": ["the river"], "subset": "aligned"},
    ]
    rejected = ["a very long and wrong answer", "the hill", "the sea", None]
    samples = [make_sample(n, answers=["the river"], **change) for n, change in enumerate(changes)]
    world = make_world(tmp_path, train=samples, bench=0)
    recipe = load_recipe(write_recipe(world, tmp_path / "run", "d2e.objective=prefer"))
    loaded = load_model(recipe.model.name)
    rows = read_rows(recipe, "training", loaded, progress=False)
    told = "  1 without a rejected answer, "
    assert describe_rows(recipe, "training", rows)[1:] == [
        "  pairs: 3; the rejected answer is 1 the column rejected, 1 the habit, 1 the answer before the swap",
        f"{told}trained by the cross entropy only (d2e.sft_weight=1)",
    ]
    recipe.d2e.sft_weight = 0
    assert describe_rows(recipe, "training", rows)[-1] == f"{told}with no effect"
    others = [
        sample.model_copy(update={"answers": [text], "rejected": []})
        for sample, text in zip(samples, rejected, strict=True)
        if text
    ]
    write_samples(others, tmp_path / "train.jsonl")
    recipe.d2e.objective = "sft"
    expected = [row["answer"] for row in read_rows(recipe, "training", loaded, progress=False).dataset]
    assert [row["rejected"] for row in rows.dataset] == [*expected, []]
    assert "rejected" not in read_rows(recipe, "training", loaded, progress=False).dataset[0]
    # The longer of the two answers counts, also where contexts are cut.
    longest = rows.kept[0].longest
    assert longest == len(rows.dataset[0]["original"]) + len(rows.dataset[0]["rejected"])
    recipe.d2e.objective, recipe.data.max_length, recipe.data.overlong = "prefer", longest - 5, "truncate_context"
    write_samples(samples, tmp_path / "train.jsonl")
    cut = read_rows(recipe, "training", loaded, progress=False)
    assert max(item.longest for item in cut.kept) <= longest - 5
    assert [row["rejected"] for row in cut.dataset] == [row["rejected"] for row in rows.dataset]


@pytest.fixture(scope="module")
def encoder() -> ViewEncoder:
    return ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), ("original", "imagined", "refined"))


def test_a_truncated_context_leaves_question_and_answer_whole(encoder: ViewEncoder) -> None:
    sample = make_sample(4, context="first " + "word " * 400)
    result = encode_samples([make_sample(1), sample], encoder, max_length=500, overlong="truncate_context")
    assert not result.dropped
    assert result.truncated == [sample]
    cut = result.kept[1]
    whole = encoder.encode(sample)
    text = encoder.tokenizer.decode(cut.prompts["original"])
    assert "first word word" in text
    assert sample.question in text
    assert cut.answer == whole.answer
    assert 490 < cut.longest <= 500
    assert cut.prompts["imagined"] == whole.prompts["imagined"]


def test_a_context_without_blanks_is_cut_and_not_emptied_and_an_answer_stays_whole(encoder: ViewEncoder) -> None:
    sample = make_sample(4, context="雨" * 300)
    result = encode_samples([sample], encoder, max_length=500, overlong="truncate_context")
    assert encoder.tokenizer.decode(result.kept[0].prompts["original"]).count("雨") > 20
    with pytest.raises(UserError, match="even without context"):
        encode_samples([make_sample(1)], encoder, max_length=100, overlong="truncate_context")


def test_datasets_are_chosen_from_in_equal_numbers_in_file_order() -> None:
    samples = [make_sample(n, dataset="large" if n < 8 else "small") for n in range(10)]
    chosen = choose_samples(samples, 4, seed=0)
    assert [sample.dataset for sample in chosen] == ["large", "large", "small", "small"]
    assert [sample.id for sample in chosen] == sorted(sample.id for sample in chosen)
    assert chosen == choose_samples(samples, 4, seed=0)
    assert sum(sample.dataset == "small" for sample in choose_samples(samples, 8, seed=0)) == 2
    assert choose_samples(samples, None, seed=0) == samples


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        ("A:aligned B:aligned A:conflict B:conflict", "aligned aligned_B conflict conflict_B"),
        ("A:aligned B:aligned B:conflict", "aligned_A aligned conflict"),  # the first lacks a subset
        ("A:aligned B:conflict", "aligned conflict"),
    ],
)
def test_a_probe_reports_the_first_dataset_with_both_subsets_and_further_ones_by_name(given: str, groups: str) -> None:
    named = [one.split(":") for one in given.split()]
    samples = [make_sample(n, dataset=dataset, subset=subset) for n, (dataset, subset) in enumerate(named)]
    assert probe_groups(samples) == groups.split()

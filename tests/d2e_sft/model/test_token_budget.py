"""How the rows of a step are cut into micro-batches, by tokens or by rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Collator, Row
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import TokenCosts, cut_by_tokens
from tests.d2e_sft.train.test_loader import rows

D2E = D2ESection()
SHARED = Layout("shared_batch", "sdpa")


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


def test_rows_with_the_same_context_share_a_micro_batch() -> None:
    # Contexts a to c; a further row of a saves 30 of its 40 tokens, one of b 5, and rows of c share too little.
    costs = TokenCosts([40] * 8, shared=0, contexts="abacbaca", saved={"a": 30, "b": 5})
    assert costs.of_micro_batch([0, 2, 5]) == 40 + 2 * (40 - 30)
    assert costs.of_micro_batch([0, 1, 4, 3, 6]) == 40 + (2 * 40 - 5) + 2 * 40
    assert cut_by_tokens(range(8), costs, budget=80) == [[1, 4], [0, 2, 5, 7], [3, 6]]
    assert cut_by_tokens(range(8), costs, budget=60) == [[0, 5], [2, 7], [1], [4], [3], [6]]
    by_rows, most = costs.budgeted(None, 3)
    assert most == 3
    for processes in (1, 2, 4):
        parts = cut_by_tokens(range(8), by_rows, most, processes)
        assert sorted(i for part in parts for i in part) == list(range(8))
        assert len(parts) % processes == 0
        assert max(map(len, parts)) <= 3
    # Contexts of 4, 2 and 2 rows: the first fills a micro-batch and begins another, where b finds room.
    assert cut_by_tokens(range(8), by_rows, most) == [[0, 2, 5], [7, 1, 4], [3, 6]]
    one_context = TokenCosts([40] * 4, contexts="aaaa", saved={"a": 30})
    assert sorted(map(len, cut_by_tokens(range(4), one_context, budget=500, processes=2))) == [2, 2], "none waits"


@pytest.mark.parametrize("views", [3, 1])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_contexts_save_tokens_and_never_hold_more_than_is_counted(views: int, size: int) -> None:
    d2e = D2E if views == 3 else D2ESection(debias=False, distill=False)
    samples = rows(48, contexts=6)
    costs = TokenCosts.of(samples, SHARED, d2e)
    alone = TokenCosts.of([{**row, "context": 0} for row in samples], SHARED, d2e)
    collate, kept = Collator("shared_batch", d2e.views), Counter[str]()
    for start in range(0, 48, size):
        part = sorted(range(48), key=lambda i: samples[i]["context"])[start : start + size]
        kept["laid out"] += (laid_out := collate([samples[i] for i in part])["input_ids"].numel())
        kept["counted"] += (counted := costs.of_micro_batch(part))
        kept["alone"] += alone.of_micro_batch(part)
        assert laid_out <= counted
    assert kept["laid out"] <= kept["counted"] < 0.9 * kept["alone"]


@pytest.mark.parametrize(
    ("packing", "change", "reason"),
    [
        ("shared_batch", {}, None),
        ("batched", {}, "packing batched shares no tokens between samples"),
        ("shared_batch", {"context": 0}, "no two rows have the same context"),
        ("shared_batch", {"original": "reversed"}, "begin differently"),
    ],
)
def test_why_contexts_save_nothing_is_named(packing: Any, change: dict[str, Any], reason: str | None) -> None:
    samples: list[Row] = rows(12, contexts=3)
    if "original" in change:
        samples = [{**row, "original": row["original"][::-1]} for row in samples]
    else:
        samples = [{**row, **change} for row in samples]
    found = TokenCosts.of(samples, Layout(packing, "sdpa"), D2E).why_nothing_is_saved(Layout(packing, "sdpa"))
    assert found is reason if reason is None else reason in str(found)

"""Packed rows: every sequence is there whole, shared prefixes once, and each token sees its own past alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from d2e_sft.model.packing import PackedRow, pack


def _random_groups(seed: int) -> list[list[list[int]]]:
    """Three samples of three views, over few tokens, so that chance prefixes and equal sequences occur."""
    source = random.Random(seed)

    def some(low: int, high: int, tokens: int = 30) -> list[int]:
        return [source.randrange(tokens) for _ in range(source.randint(low, high))]

    system = some(0, 12)
    groups = []
    for _ in range(3):
        start = [*system, *some(0, 20)]
        groups.append([[*start, *some(1, 30, tokens=2)] for _ in range(2)] + [[*start, *some(1, 4, tokens=1)]])
    return groups


def _naive_mask(row: PackedRow) -> torch.Tensor:
    mask = torch.zeros(row.forest.length, row.forest.length, dtype=torch.bool)
    for index in row.indices:
        for count, token in enumerate(index, start=1):
            mask[token, index[:count]] = True
    return mask


def _flat(groups: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    return [list(sequence) for group in groups for sequence in group]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("leading", [None, 1])
@pytest.mark.parametrize("one_group", [False, True])
@pytest.mark.parametrize("min_shared", [1, 8])
def test_a_packed_row_holds_every_sequence_and_nothing_else(
    seed: int, leading: int | None, one_group: bool, min_shared: int
) -> None:
    groups = _random_groups(seed)
    if one_group:
        groups = [_flat(groups)]
    row = pack(groups, leading=leading, min_shared=min_shared)
    for sequence, index in zip(_flat(groups), row.indices, strict=True):
        assert [row.tokens[i] for i in index] == sequence
        assert row.forest.position_ids[index].tolist() == list(range(len(sequence)))
    used = {i for index in row.indices for i in index}
    assert used == set(range(row.forest.length)), "no token is there for nobody"
    assert torch.equal(row.forest.plan(0, row.forest.length).mask(), _naive_mask(row))


@pytest.mark.parametrize("seed", range(10))
def test_blocks_name_each_visible_pair_once(seed: int) -> None:
    row = pack([_flat(_random_groups(seed))], leading=2, min_shared=1)
    lead, length = row.forest.lead, row.forest.length
    expected = _naive_mask(row).int()
    for start, end in ((0, length), (0, lead), (lead, length)):
        plan = row.forest.plan(start, end)
        seen = torch.zeros(plan.length, end, dtype=torch.int)
        for block in plan.blocks:
            shape = (block.q_end - block.q_start, block.k_end - block.k_start)
            part = torch.ones(shape, dtype=torch.int)
            seen[block.q_start : block.q_end, block.k_start : block.k_end] += part.tril() if block.causal else part
        assert torch.equal(seen, expected[start:end, :end])


PREFIX = list(range(10))
TWO_VIEWS = [[*PREFIX, 50], [*PREFIX, 51]]
SHORT = [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]


@pytest.mark.parametrize(
    ("groups", "min_shared", "length"),
    [
        ([TWO_VIEWS, TWO_VIEWS], 8, 2 * (10 + 2)),  # prefixes are shared only within a group
        ([[*TWO_VIEWS, *TWO_VIEWS]], 8, 10 + 4),
        ([SHORT], 4, 10),  # a short prefix is not worth a segment
        ([SHORT], 3, 7),
        ([[PREFIX, PREFIX]], 8, 11),  # equal sequences keep their last token apart
    ],
)
def test_the_length_of_a_row(groups: list[list[list[int]]], min_shared: int, length: int) -> None:
    assert pack(groups, min_shared=min_shared).forest.length == length


def test_a_window_counts_positions_and_not_places_in_the_row() -> None:
    prefix = list(range(10))
    row = pack([[[*prefix, 50, 51], [*prefix, 60, 61]]])
    mask = row.forest.plan(0, 14).mask(window=3)
    last = row.indices[1][-1]
    assert mask[last].nonzero().flatten().tolist() == row.indices[1][-3:], "its branch's start and the prefix's end"

"""Drawing in fixed ratios: whole numbers that sum up, what a short dataset lacks, and who is asked how often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.build.mixture import Pool, allot, draw
from data_builders.build.suites import PIPER_10K
from data_builders.quality.judged import Verdict
from tests.tiny import make_sample

RATIOS = {"a": 50.0, "b": 30.0, "c": 20.0}


def _samples(name: str, count: int) -> list[EventSample]:
    return [make_sample(number, id=f"{name}-{number}") for number in range(count)]


def _draw(
    counts: dict[str, int], size: int, *, allow_shortfall: bool = False, seed: int = 0
) -> tuple[list[EventSample], dict[str, Any]]:
    pools = {name: Pool(name, _samples(name, count)) for name, count in counts.items()}
    return draw(
        pools, RATIOS, size, lambda rows: [Verdict.SUPPORTED] * len(rows), seed=seed, allow_shortfall=allow_shortfall
    )


def test_the_published_ratios_give_the_rows_of_ten_thousand() -> None:
    assert list(allot(10_000, PIPER_10K.ratios, {}).values()) == [
        85, 420, 508, 645, 700, 700, 1_280, 1_280, 1_751, 2_631,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_parts_sum_up_and_are_within_one_of_their_exact_share(seed: int) -> None:
    rng = random.Random(seed)
    ratios = {str(i): rng.uniform(0.1, 30) for i in range(rng.randint(1, 9))}
    size = rng.randint(1, 5_000)
    parts = allot(size, ratios, {})
    assert sum(parts.values()) == size
    for name, ratio in ratios.items():
        assert abs(parts[name] - size * ratio / sum(ratios.values())) < 1


@pytest.mark.parametrize("seed", range(5))
def test_what_a_limit_cuts_off_goes_to_the_others_in_proportion(seed: int) -> None:
    rng = random.Random(seed)
    ratios = {str(i): rng.uniform(1, 30) for i in range(6)}
    limits = {str(i): rng.randint(0, 400) for i in range(6) if rng.random() < 0.6}
    parts = allot(1_000, ratios, limits)
    assert all(parts[name] <= limit for name, limit in limits.items())
    free = [name for name in ratios if parts[name] < limits.get(name, 10**9)]
    assert sum(parts.values()) == (1_000 if free else sum(limits.values()))
    # By hand: all datasets below their limit get the same number of rows per unit of ratio.
    for one, other in pairwise(free):
        assert abs(parts[one] / ratios[one] - parts[other] / ratios[other]) < 1 / ratios[one] + 1 / ratios[other]


def test_a_shortfall_is_an_error_that_lists_every_short_dataset() -> None:
    with pytest.raises(UserError) as refused:
        _draw({"a": 90, "b": 10, "c": 0}, 100)
    message = str(refused.value)
    assert "2 of 3 datasets have too few" in message
    assert "b  wanted    30, found    10, short    20: 10 candidates after the filters" in message
    assert "c  wanted    20, found     0, short    20" in message
    assert "--allow-shortfall" in message


def test_an_allowed_shortfall_is_filled_from_the_others_and_recorded() -> None:
    # b gives 10 of its 30; the missing 20 go to a and c as 50 : 20, that is 14.3 and 5.7.
    _, described = _draw({"a": 90, "b": 10, "c": 90}, 100, allow_shortfall=True)
    assert {name: part["drawn"] for name, part in described["datasets"].items()} == {"a": 64, "b": 10, "c": 26}
    assert described["rescaled"]
    assert described["datasets"]["b"]["reason"].startswith("10 candidates")
    assert described["datasets"]["a"]["reason"] == "takes part of what others lack"


def test_exhausted_datasets_give_a_smaller_set_and_empty_ones_an_error() -> None:
    assert len(_draw({"a": 3, "b": 4, "c": 5}, 100, allow_shortfall=True)[0]) == 12
    with pytest.raises(UserError, match="no dataset has a usable training sample"):
        _draw({"a": 0, "b": 0, "c": 0}, 100, allow_shortfall=True)


def test_the_order_is_seeded_and_mixes_the_datasets() -> None:
    counts = {"a": 90, "b": 90, "c": 90}
    _, described = _draw(counts, 100)
    assert {name: part["drawn"] for name, part in described["datasets"].items()} == {"a": 50, "b": 30, "c": 20}
    assert not described["rescaled"]
    orders = {seed: [sample.id for sample in _draw(counts, 60, seed=seed)[0]] for seed in (0, 1)}
    assert orders[0] == [sample.id for sample in _draw(counts, 60)[0]]
    assert orders[0] != orders[1]
    assert {name[0] for name in orders[0][:20]} == {"a", "b", "c"}


def test_the_judge_is_asked_about_no_more_samples_than_the_quota_needs() -> None:
    asked: list[str] = []

    def keep_half(samples: Sequence[EventSample]) -> list[Verdict]:
        asked.extend(sample.id for sample in samples)
        return [list(Verdict)[int(sample.id.split("-")[1]) % 4] for sample in samples]

    pool = Pool("a", _samples("a", 1_000))
    pool.fill(20, keep_half)
    assert len(pool.kept) == 20
    assert len(asked) == len(set(asked)) == pool.judged == 40  # of four, one is refused and one undecided

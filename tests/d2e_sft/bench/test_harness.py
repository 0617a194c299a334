"""Benchmarks: variants take turns, and each figure is a median."""

import torch

from d2e_sft.bench.harness import Cost, Measurement, in_turns
from d2e_sft.model.device import PeakMemory

CPU = torch.device("cpu")


def test_variants_take_turns_and_the_first_turn_is_not_timed() -> None:
    called: list[str] = []
    variants = {name: lambda name=name: called.append(name) or len(called) for name in ("left", "right")}
    prepared: list[str] = []
    *_, measured = in_turns(variants, 2, CPU, prepare=prepared.append)
    assert called == prepared == ["left", "right"] * 3
    assert [len(one.costs) for one in measured.values()] == [2, 2]
    assert [one.result for one in measured.values()] == [5, 6]
    *_, measured = in_turns(variants, 2, CPU, warm_up=False)
    assert [len(one.costs) for one in measured.values()] == [2, 2]
    assert len(called) == 10


def test_memory_is_the_peak_above_what_was_there() -> None:
    kept = torch.ones(30 * 2**20 // 4)
    variants = {"small": lambda: torch.ones(1), "large": lambda: torch.ones(60 * 2**20 // 4).sum().item()}
    *_, measured = in_turns(variants, 1, CPU, memory=PeakMemory)
    small, large = (one.peak_mb or 0 for one in measured.values())
    assert small < 20
    assert 50 < large < 90
    assert kept[0] == 1


def test_each_figure_has_its_own_median() -> None:
    assert Measurement([Cost(3, 1), Cost(1, 9), Cost(2, 2)]).cost == Cost(2, 2)
    slow, fast = [Cost(3, 8), Cost(8, 2)], [Cost(1, 2), Cost(2, 2)]
    assert Measurement(slow).ratio_to(Measurement(fast)) == 2.5
    by_clock = [Measurement(costs, by_clock=True) for costs in (slow, fast)]
    assert by_clock[0].ratio_to(by_clock[1]) == 3.5

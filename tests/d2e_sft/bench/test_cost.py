"""The cost of a run: turns, medians, and a process that is watched."""

from __future__ import annotations

import sys

import pytest
import torch

from d2e_sft.bench.cost import Cost, cost_of_process, median, take_turns
from d2e_sft.util.errors import UserError

CPU = torch.device("cpu")


def test_ways_take_turns_and_the_first_turn_is_not_timed() -> None:
    called: list[str] = []
    ways = {name: lambda name=name: called.append(name) or len(called) for name in ("one", "other")}
    costs, results = take_turns(ways, 2, CPU)
    assert called == ["one", "other"] * 3
    assert {name: len(own) for name, own in costs.items()} == {"one": 2, "other": 2}
    assert results == {"one": 5, "other": 6}


def test_memory_is_the_peak_above_what_was_there() -> None:
    kept = torch.ones(30 * 2**20 // 4)
    ways = {"small": lambda: torch.ones(1), "large": lambda: torch.ones(60 * 2**20 // 4).sum().item()}
    costs, _ = take_turns(ways, 1, CPU, with_memory=True)
    small, large = (costs[name][0].peak_mb or 0 for name in ways)
    assert small < 20
    assert 50 < large < 90
    assert kept[0] == 1


def test_a_processor_that_computes_takes_time_and_one_that_waits_does_not() -> None:
    waits = cost_of_process([sys.executable, "-S", "-c", "import time; time.sleep(0.4)"])
    assert waits.clock_s > 0.4
    assert waits.cpu_s < waits.clock_s


def test_the_memory_of_a_process_is_its_own() -> None:
    large = torch.ones(200 * 2**20 // 4)
    cost = cost_of_process(
        [sys.executable, "-S", "-c", "x = bytearray(b'1') * (40 * 2**20); import time; time.sleep(0.2)"]
    )
    assert 40 < (cost.peak_mb or 0) < 100
    assert large[0] == 1


def test_a_process_that_fails_is_reported_with_its_last_lines() -> None:
    with pytest.raises(UserError, match="exited with 3: no model here"):
        cost_of_process([sys.executable, "-S", "-c", "import sys; print('no model here'); sys.exit(3)"])


def test_each_figure_has_its_own_median() -> None:
    assert median([Cost(3, 1), Cost(1, 9, 5.0), Cost(2, 2, 7.0)]) == Cost(2, 2, 6.0)

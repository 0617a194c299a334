"""The harness of the benches: turns, medians, a process that is watched, and a report that is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.bench.harness import Cost, Measurement, Report, cost_of_process, in_turns
from d2e_sft.model.device import PeakMemory
from d2e_sft.util.errors import UserError

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
    small, large = (one.cost.peak_mb or 0 for one in measured.values())
    assert small < 20
    assert 50 < large < 90
    assert kept[0] == 1


def test_each_figure_has_its_own_median() -> None:
    assert Measurement([Cost(3, 1), Cost(1, 9, 5.0), Cost(2, 2, 7.0)]).cost == Cost(2, 2, 6.0)
    assert Measurement([Cost(3, 1)], peak_mb=4).cost == Cost(3, 1, 4)


def test_a_process_is_measured_by_itself() -> None:
    large = torch.ones(200 * 2**20 // 4)
    code = "x = bytearray(b'1') * (40 * 2**20); import time; time.sleep(0.4)"
    cost = cost_of_process([sys.executable, "-S", "-c", code])
    assert 40 < (cost.peak_mb or 0) < 100, "not that of this process"
    assert cost.cpu_s < cost.clock_s, "waiting takes no processor time"
    assert cost.clock_s > 0.4
    assert large[0] == 1


def test_a_process_that_fails_is_reported_with_its_last_lines() -> None:
    with pytest.raises(UserError, match="exited with 1: no model here"):
        cost_of_process([sys.executable, "-S", "-c", "import sys; sys.exit('no model here')"])


def case(calls: list[str], name: str, error: Exception | None = None) -> Callable[[], Iterator[dict[str, Any]]]:
    def run() -> Iterator[dict[str, Any]]:
        calls.append(name)
        if error is not None and calls.count(name) == 1:
            raise error
        yield {"case": name}

    return run


def test_a_report_is_written_after_every_case_and_resumes_those_that_failed(tmp_path: Path) -> None:
    calls: list[str] = []
    file = tmp_path / "bench.json"
    cases = {
        "first": case(calls, "first"),
        "second": case(calls, "second", RuntimeError("no kernel\nand a long trace")),
        "third": case(calls, "third", torch.OutOfMemoryError("CUDA out of memory")),
    }
    report = Report({"machine": "here"})
    report.measure(cases, 60, file)
    kept = json.loads(file.read_text())
    assert kept["rows"] == {"first": [{"case": "first"}]}
    assert kept["skipped"] == {"second": "failed: RuntimeError: no kernel", "third": "out of memory"}
    assert report.failed == ["second"]
    resumed = Report(**kept)
    resumed.measure(cases, 0, file)
    assert resumed.skipped == dict.fromkeys(["second", "third"], "the 0 s were over")
    resumed.measure(cases, 60, file)
    assert calls == ["first", "second", "third", "second", "third"]
    assert (resumed.skipped, list(resumed.rows)) == ({}, ["first", "second", "third"])

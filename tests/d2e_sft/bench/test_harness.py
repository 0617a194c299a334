"""Benchmarks: turns and medians, and the table beside peers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.bench import peers, table
from d2e_sft.bench.harness import Cost, Measurement, Report, cost_of_process, in_turns
from d2e_sft.bench.table import CASES, REHEARSAL, TableBench, bench_all, table_of
from d2e_sft.model.device import PeakMemory
from d2e_sft.util.errors import UserError
from tests.command import d2e, output_of, refusal_of
from tests.tiny import save_tiny_model

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
    slow, fast = [Cost(3, 8), Cost(8, 2)], [Cost(1, 2), Cost(2, 2)]
    assert Measurement(slow).ratio_to(Measurement(fast)) == 2.5
    by_clock = [Measurement(costs, by_clock=True) for costs in (slow, fast)]
    assert by_clock[0].ratio_to(by_clock[1]) == 3.5


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


def test_every_case_but_the_start_is_measured_beside_its_peer(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    model, out, wanted = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "bench", CASES[:-1]
    printed = output_of("bench", "all", "--rehearse", "--model", model, "--out", out, "--parts", ",".join(wanted))
    rows = json.loads((out / "bench.json").read_text("utf-8"))["rows"]
    assert [*rows] == [*wanted]
    assert [len(listed) for listed in rows.values()] == [2, 1, 2, 3, 1, 1]
    for row in (row for listed in rows.values() for row in listed):
        if row["theirs"] is None:
            assert "trl is not installed" in row["why"]
            continue
        assert row["ratio"] == pytest.approx(row["ours"]["cpu_s"] / row["theirs"]["cpu_s"])
        assert row["same"] in (None, 1), "both sides give the same answers"
    for text in (printed, (out / "bench.md").read_text("utf-8")):
        assert "lm-evaluation-harness" in text
        assert "a built suite of 40 rows" in " ".join(text.split())


def test_the_start_runs_the_commands_that_a_user_would_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    commands: list[list[str]] = []

    def run(command: Sequence[str]) -> Cost:
        commands.append([*command])
        if "d2e_sft.cli" in command:
            assert d2e(*command[3:]) == 0
        else:
            peers.answer(*command[4:])
        return Cost(2.0, 1.0, 300.0)

    monkeypatch.setattr(table, "cost_of_process", run)
    monkeypatch.setattr(peers, "trl_is_missing", lambda: "trl is not installed")
    model, out = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "bench"
    output_of("bench", "all", "--rehearse", "--model", model, "--out", out, "--parts", "start")
    trained, answered = json.loads((out / "bench.json").read_text("utf-8"))["rows"]["start"]
    assert (trained["ours"]["peak_mb"], trained["theirs"], trained["why"]) == (300, None, "trl is not installed")
    assert (answered["ratio"], answered["theirs"]["clock_s"]) == (1, 2)
    assert {command[0] for command in commands} == {sys.executable}
    ours, theirs = (json.loads((out / "start" / f"{name}.jsonl").read_text("utf-8")) for name in ("answer", "peer"))
    assert ours["output"] or theirs["output"]
    assert (out / "start" / "run" / "adapter_model.safetensors").is_file()


def test_a_users_script_trains_one_step(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    model = save_tiny_model(tmp_path / "model", seed=1)
    rows = tmp_path / "rows.jsonl"
    row = json.dumps({"story": "Bo carried the map into the car.", "ask": "Where is the map?", "place": "the car"})
    rows.write_text(f"{row}\n" * 8, encoding="utf-8")
    peers.train(str(model), str(rows), str(tmp_path / "out"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


def test_a_table_is_resumed_and_replaced_once_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    failed: list[str] = []

    def cases(bench: TableBench) -> dict[str, object]:
        def case(name: str) -> list[dict[str, object]]:
            calls.append(name)
            if name == "suite" and not failed:
                failed.append(name)
                raise RuntimeError("no memory for this")
            measured = {"ours": Measurement([Cost(1, 2, 10), Cost(1, 4, 10)]), "peer": Measurement([Cost(1, 4)] * 2)}
            return [table._row(f"a {name}", measured, "ours", "peer", "a loop", 2)]

        return {name: lambda name=name: case(name) for name in CASES}

    monkeypatch.setattr(TableBench, "cases", cases)
    bench = TableBench("m", REHEARSAL, tmp_path, lambda name: None)
    assert bench_all(bench, 1).skipped == {"suite": "failed: RuntimeError: no memory for this"}
    second = bench_all(bench, 1)
    assert calls == [*CASES, "suite"]
    (row,) = second.rows["suite"]
    assert (row["ours"]["cpu_s"], row["theirs"]["cpu_s"], row["ratio"]) == (1.5, 2, 0.75)
    assert "Not measured" not in table_of(second).terminal()
    assert table_of(second).markdown().count("| a start") == 1
    bench_all(bench, 1)
    assert calls[len(CASES) + 1 :] == [*CASES], "a complete table is measured anew"
    calls.clear()
    assert table.is_complete(bench_all(bench, 1, ["suite"]))
    assert calls == ["suite"]
    other = TableBench("another", REHEARSAL, tmp_path, lambda name: None)
    assert bench_all(other, 0).skipped["start"] == "the 0 s were over"


def test_an_unknown_case_is_refused(tmp_path: Path) -> None:
    message = " ".join(refusal_of("bench", "all", "--out", tmp_path, "--parts", "trainings").split())
    assert "--parts trainings" in message
    assert "Did you mean 'training'" in message

"""`d2e bench all` on a tiny model: both sides give the same results; the file is resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from d2e_sft.bench import peers, table
from d2e_sft.bench.harness import Cost, Measurement
from d2e_sft.bench.table import CASES, REHEARSAL, TableBench, bench_all, table_of
from tests.command import d2e, output_of, refusal_of
from tests.tiny import save_tiny_model


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
    assert "Did you mean 'training'" in message

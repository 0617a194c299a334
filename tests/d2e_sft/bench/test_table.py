"""`d2e bench all` on a tiny model: both sides give the same results, and the table is resumed and replaced."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from d2e_sft.bench.cost import Cost
from d2e_sft.bench.table import parts, plain_script, report
from d2e_sft.bench.table.row import REHEARSAL, Bench, Row, compared
from tests.command import call, d2e, output_of, refusal_of
from tests.tiny import save_tiny_model

MEASURED = ("training", "preference", "decoding", "suite", "build", "refined")


def test_every_part_but_the_start_is_measured_beside_its_peer(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    model = save_tiny_model(tmp_path / "model", seed=1)
    out = tmp_path / "bench"
    printed = output_of("bench", "all", "--rehearse", "--model", model, "--out", out, "--parts", ",".join(MEASURED))
    rows = json.loads((out / "bench.json").read_text("utf-8"))["rows"]
    assert [*rows] == [*MEASURED]
    assert {name: len(own) for name, own in rows.items()} == {
        "training": 2, "preference": 1, "decoding": 2, "suite": 3, "build": 1, "refined": 1,
    }  # fmt: skip
    for row in (row for own in rows.values() for row in own):
        if row["theirs"] is None:
            assert "trl is not installed" in row["why"]
            continue
        assert row["ratio"] == pytest.approx(row["ours"]["cpu_s"] / row["theirs"]["cpu_s"])
        assert row["same"] in (None, 1), "both sides give the same answers"
    table = (out / "bench.md").read_text("utf-8")
    for text in (printed, table):
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
            plain_script.answer(*command[4:])
        return Cost(2.0, 1.0, 300.0)

    monkeypatch.setattr(parts, "cost_of_process", run)
    monkeypatch.setattr(parts, "trl_is_missing", lambda: "trl is not installed")
    model = save_tiny_model(tmp_path / "model", seed=1)
    output_of("bench", "all", "--rehearse", "--model", model, "--out", tmp_path / "bench", "--parts", "start")
    trained, answered = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))["rows"]["start"]
    assert (trained["ours"]["peak_mb"], trained["theirs"], trained["why"]) == (300, None, "trl is not installed")
    assert (answered["ratio"], answered["theirs"]["clock_s"]) == (1, 2)
    assert [command[0] for command in commands] == [sys.executable] * len(commands)
    ours, theirs = (
        json.loads((tmp_path / "bench" / "start" / f"{name}.jsonl").read_text("utf-8")) for name in ("answer", "peer")
    )
    assert ours["output"] or theirs["output"]
    assert (tmp_path / "bench" / "start" / "run" / "adapter_model.safetensors").is_file()


def test_a_users_script_trains_one_step(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    model = save_tiny_model(tmp_path / "model", seed=1)
    rows = tmp_path / "rows.jsonl"
    row = json.dumps({"story": "Bo carried the map into the car.", "ask": "Where is the map?", "place": "the car"})
    rows.write_text(f"{row}\n" * 8, encoding="utf-8")
    plain_script.train(str(model), str(rows), str(tmp_path / "out"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


Part = Callable[[Bench], Iterator[Row]]


def fake(calls: list[str], name: str, *, fails: bool = False) -> Part:
    def part(bench: Bench) -> Iterator[Row]:
        calls.append(name)
        if fails and calls.count(name) == 1:
            raise RuntimeError("no memory for this")
        yield compared(f"a {name}", [Cost(1, 2, 10), Cost(1, 4, 10)], "a loop", [Cost(1, 4), Cost(1, 4)], each=2)

    return part


def test_a_table_is_resumed_after_a_failure_and_replaced_once_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fakes = {"one": fake(calls, "one"), "two": fake(calls, "two", fails=True), "three": fake(calls, "three")}
    monkeypatch.setattr(report, "PARTS", fakes)
    bench = Bench("m", REHEARSAL, tmp_path, lambda name: None)
    first = report.bench_all(bench, 1)
    assert calls == ["one", "two", "three"]
    assert first.skipped == {"two": "failed: RuntimeError: no memory for this"}
    assert not first.is_complete
    second = report.bench_all(bench, 1)
    assert calls == ["one", "two", "three", "two"]
    assert second.is_complete
    assert not second.skipped
    (row,) = second.rows["two"]
    assert (row["ours"]["cpu_s"], row["theirs"]["cpu_s"], row["ratio"]) == (1.5, 2, 0.75)
    report.bench_all(bench, 1)
    assert calls[4:] == ["one", "two", "three"]
    other = Bench("another", REHEARSAL, tmp_path, lambda name: None)
    assert report.bench_all(other, 0).skipped["one"] == "the 0 minutes were over"
    assert calls[7:] == []
    shown = report.as_table(second)
    assert "Not measured" not in shown.terminal()
    assert shown.markdown().count("| a one") == 1


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    said = refusal_of("bench", "all", "--out", tmp_path, "--parts", "trainings").replace("\n", " ")
    assert "--parts trainings" in said
    assert "Did you mean 'training'" in said
    assert not call("bench", "all", "--help").status

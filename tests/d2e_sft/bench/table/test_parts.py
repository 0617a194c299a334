"""`d2e bench all` on a tiny model: both sides give the same results."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from d2e_sft.bench.cost import Cost
from d2e_sft.bench.table import parts, plain_script
from tests.command import d2e, output_of
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

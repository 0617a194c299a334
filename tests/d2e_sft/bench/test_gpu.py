"""`d2e bench gpu`: a report after every case, whatever becomes of the case (rehearsed whole in tests/gpu)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.bench import gpu
from d2e_sft.bench.shapes import Peaks
from d2e_sft.cli import run
from d2e_sft.util.errors import UserError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "measure_peaks", lambda device: Peaks("none", 1e9, 1e9, None))
    monkeypatch.setattr(gpu, "trl_is_missing", lambda: "trl is not installed")


def test_the_report_is_written_after_every_case_and_a_failure_ends_none_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "bench-gpu.json", list[dict[str, Any]]()

    def decode(report: Any, plan: Any, shape: str, batch: int, device: Any) -> None:
        seen.append(json.loads(file.read_text()))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def train(*given: Any) -> None:
        if "bias model" not in given:
            raise RuntimeError("no kernel\nand a long trace")

    monkeypatch.setattr(gpu, "_train", train)
    monkeypatch.setattr(gpu, "_answer", train)
    monkeypatch.setattr(gpu, "_decode", decode)
    with pytest.raises(UserError, match=r"training, tiny, .* failed"):
        run(["bench", "gpu", "--rehearse", "--out", str(tmp_path)])
    failing = [
        f"{case}, tiny" for case in ("training", "float16", "preference", "evaluation", "refiner by likelihood")
    ]
    failed = {"case": "training, tiny", "reason": "failed: RuntimeError: no kernel"}
    assert failed in seen[0]["skipped"], "on the disk before the next case began"
    reasons = {one["case"]: one["reason"] for one in json.loads(file.read_text())["skipped"]}
    assert reasons == {
        "training, TRL": "trl is not installed",
        **dict.fromkeys(failing, "failed: RuntimeError: no kernel"),
        "decoding, tiny, batch 2": "out of memory",
    }
    assert "skipped: decoding, tiny, batch 2: out of memory" in (tmp_path / "bench-gpu.md").read_text()


def test_d2e_device_decides_where_it_rehearses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "usable_device", lambda: torch.device("cuda"))
    measured: list[torch.device] = []
    monkeypatch.setattr(gpu, "_train", lambda report, plan, shape, device, *_: measured.append(device))
    for name in ("_answer", "_decode"):
        monkeypatch.setattr(gpu, name, lambda *_: None)
    monkeypatch.setenv("D2E_DEVICE", "cpu")
    gpu.bench_gpu(file=None, seconds=60)
    assert {device.type for device in measured} == {"cpu"}
    monkeypatch.setenv("D2E_DEVICE", "gpu")
    with pytest.raises(UserError, match="'gpu': expected cuda or cpu"):
        gpu.bench_gpu(file=None, seconds=60)


def test_nothing_is_begun_when_the_time_is_over() -> None:
    report = gpu.bench_gpu(file=None, seconds=0, rehearse=True)
    assert not [*report.training, *report.answering, *report.decoding]
    assert {"case": "training, tiny", "reason": "the 0 s were over"} in report.skipped
    assert not report.failed


def test_without_an_accelerator_and_with_unknown_shapes_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("D2E_DEVICE", raising=False)
    monkeypatch.setattr(gpu, "usable_device", lambda: torch.device("cpu"))
    with pytest.raises(UserError, match=r"no accelerator(.|\n)*--rehearse"):
        gpu.bench_gpu(file=None, seconds=1)
    with pytest.raises(UserError, match="no shape 'qwen9'"):
        gpu.bench_gpu(file=None, seconds=1, shapes=["qwen9"])

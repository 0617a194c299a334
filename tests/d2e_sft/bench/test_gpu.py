"""`d2e bench gpu`: what is refused, and where it rehearses (rehearsed whole in tests/gpu)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.bench import gpu
from d2e_sft.bench.gpu import Peaks, measure_peaks
from d2e_sft.bench.train import PREFIX, QUESTION
from d2e_sft.cli import run
from d2e_sft.util.errors import UserError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "measure_peaks", lambda device: Peaks("none", 1e9, 1e9, None))
    monkeypatch.setattr(gpu, "trl_is_missing", lambda: "trl is not installed")


def test_a_failure_ends_only_its_own_case_and_the_status_is_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **options: Any) -> Iterator[dict[str, Any]]:
        raise RuntimeError("no kernel\nand a long trace")

    def too_large(*args: Any, **options: Any) -> Iterator[dict[str, Any]]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def decoded(*args: Any, **options: Any) -> list[dict[str, Any]]:
        return [{"prompt": 180, "batch": 2, "variant": "debiased", "clock_ms": 2.0}]

    monkeypatch.setattr(gpu, "bench_training", failing)
    monkeypatch.setattr(gpu, "in_turns", too_large)
    monkeypatch.setattr(gpu, "bench_decoding", decoded)
    with pytest.raises(UserError, match=r"training, tiny, .* failed"):
        run(["bench", "gpu", "--rehearse", "--out", str(tmp_path)])
    text = (tmp_path / "bench-gpu.md").read_text()
    assert "skipped: training, TRL: trl is not installed" in text
    assert text.count("failed: RuntimeError: no kernel\n") == 3
    assert text.count("out of memory") == 2
    assert "| tiny" in text, "the decoding that was measured"
    kept = json.loads((tmp_path / "bench-gpu.json").read_text())
    assert [row["variant"] for row in kept["rows"]["decoding, tiny, batch 2"]] == ["debiased"]


def test_d2e_device_decides_where_it_rehearses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "usable_device", lambda: torch.device("cuda"))
    devices: list[str] = []

    def training(*args: Any, device: torch.device, **options: Any) -> list[Any]:
        devices.append(device.type)
        return []

    monkeypatch.setattr(gpu, "bench_training", training)
    monkeypatch.setattr(gpu, "bench_decoding", lambda *args, **options: [])
    monkeypatch.setattr(gpu._GpuBench, "_answers", lambda *args: [])
    monkeypatch.setenv("D2E_DEVICE", "cpu")
    gpu.bench_gpu(file=None, seconds=60)
    assert devices == ["cpu"] * 3
    monkeypatch.setenv("D2E_DEVICE", "gpu")
    with pytest.raises(UserError, match="'gpu': expected cuda or cpu"):
        gpu.bench_gpu(file=None, seconds=60)


def test_nothing_starts_when_the_time_is_over() -> None:
    report = gpu.bench_gpu(file=None, seconds=0, rehearse=True)
    assert not report.rows
    assert report.skipped["training, tiny"] == "the 0 s were over"
    assert not report.failed


def test_without_an_accelerator_and_with_unknown_shapes_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("D2E_DEVICE", raising=False)
    monkeypatch.setattr(gpu, "usable_device", lambda: torch.device("cpu"))
    with pytest.raises(UserError, match=r"no accelerator(.|\n)*--rehearse"):
        gpu.bench_gpu(file=None, seconds=1)
    with pytest.raises(UserError, match="no shape 'qwen9'"):
        gpu.bench_gpu(file=None, seconds=1, shapes=["qwen9"])


def test_the_refiners_contexts_each_lack_another_part() -> None:
    prompt = [*range(PREFIX + 80 + QUESTION)]
    left_out = [sorted(set(prompt) - set(pair.original)) for pair in gpu._without_a_part(prompt, [[1], [2]])]
    assert left_out == [[*range(PREFIX + start, PREFIX + start + 10)] for start in range(0, 80, 10)]


def test_peaks_are_measured() -> None:
    peaks = measure_peaks(torch.device("cpu"))
    assert 1e8 < peaks.flops < 1e14
    assert 1e8 < peaks.bytes_per_s < 1e13
    assert peaks.best_flops == peaks.flops, "no data sheet of this CPU is known"
    assert replace(peaks, data_sheet_flops=1e15).best_flops == 1e15

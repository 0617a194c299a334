"""Devices and their precisions, on simulated machines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from d2e_sft.doctor import devices
from d2e_sft.doctor.finding import Finding
from tests.d2e_sft.doctor.conftest import named


def test_each_cuda_device_has_its_memory_and_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    gibibyte = 2**30
    free = {0: 79 * gibibyte, 1: 3 * gibibyte}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name="H100", major=9, minor=0)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 80 * gibibyte))
    found = list(devices.check_devices())
    assert named(found, "cuda:0") == Finding("cuda:0", "ok", "H100, 80 GiB, compute capability 9.0")
    assert named(found, "cuda:1").status == "warn"
    assert "only 3.0 GiB free" in named(found, "cuda:1").value


def test_the_cpus_fast_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_cpu_info", lambda: ("A CPU", {"avx2", "avx512f", "amx_bf16", "sse"}))
    monkeypatch.setattr(devices, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = list(devices.check_devices())
    assert named(found, "cpu").value.startswith("A CPU, 3 of ")
    assert named(found, "cpu").value.endswith("; AVX2, AVX512F, AMX_BF16")
    assert (named(found, "threads").status, named(found, "threads").remedy) == ("warn", "export OMP_NUM_THREADS=3")


def test_the_cpu_is_read_from_linux() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or "flags" not in cpuinfo.read_text():
        pytest.skip("no /proc/cpuinfo with flags here")
    _, flags = devices._cpu_info()
    line = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    assert flags == set(line.split(":")[1].split())


def test_a_precision_is_ok_only_if_its_products_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        assert named(devices.check_precisions(), "bfloat16").status == "ok"
    monkeypatch.setattr(devices, "_error", lambda product, expected: 0.3)
    found = list(devices.check_precisions())
    for name in ("bfloat16", "float16"):
        assert named(found, name).status == "warn"
        assert "wrong by 3e-01" in named(found, name).value


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a CPU's products are compared")
@pytest.mark.parametrize(
    ("seconds", "fast", "expected"),
    [
        (0.5, True, "2.0 × as fast as float32 (256 × 256); train.bf16=null uses bfloat16"),
        (40.0, False, "40.0 × slower than float32 (256 × 256); train.bf16=null uses float32"),
    ],
)
def test_the_speed_of_bfloat16_is_reported_with_the_dtype_of_training(
    monkeypatch: pytest.MonkeyPatch, seconds: float, fast: bool, expected: str
) -> None:
    monkeypatch.setattr(devices, "_seconds", lambda a, b: 1.0 if a.dtype == torch.float32 else seconds)
    monkeypatch.setattr(devices, "automatic_dtype", lambda: "bfloat16" if fast else "float32")
    assert named(devices.check_precisions(), "bfloat16").value == f"works on cpu, {expected}"


def test_a_precision_without_a_kernel_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = devices._seconds

    def seconds(a: torch.Tensor, b: torch.Tensor) -> float:
        if a.dtype == torch.float16:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return measured(a, b)

    monkeypatch.setattr(devices, "_seconds", seconds)
    found = list(devices.check_precisions())
    assert "not implemented for 'Half'" in named(found, "float16").value
    assert named(found, "float16").status == "warn"

"""Devices and their precisions, on simulated machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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


def test_more_threads_than_cores_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    found = named(devices.check_devices(), "cpu")
    assert (found.status, found.remedy) == ("warn", "export OMP_NUM_THREADS=3")
    assert ", 3 of " in found.value
    assert found.value.endswith("; torch computes with 8 threads and AVX512 instructions")


def test_a_precision_is_ok_only_if_its_products_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        assert named(devices.check_precisions(), "bfloat16").status == "ok"
    monkeypatch.setattr(devices, "_TOLERANCE", {"bfloat16": 0, "float16": 0})
    for finding in devices.check_precisions():
        assert finding.status == "warn"
        assert "wrong by " in finding.value


@pytest.mark.skipif(torch.accelerator.is_available(), reason="a CPU's products are compared")
@pytest.mark.parametrize(
    ("seconds", "fast", "expected"),
    [
        (0.5, True, "2 × as fast as float32; train.bf16=null uses bfloat16"),
        (40.0, False, "0.025 × as fast as float32; train.bf16=null uses float32"),
    ],
)
def test_the_speed_of_bfloat16_is_reported_with_the_dtype_of_training(
    monkeypatch: pytest.MonkeyPatch, seconds: float, fast: bool, expected: str
) -> None:
    monkeypatch.setattr(devices, "seconds_of_products", lambda rows, *dtypes: (1.0, seconds))
    monkeypatch.setattr(devices, "automatic_dtype", lambda: "bfloat16" if fast else "float32")
    assert named(devices.check_precisions(), "bfloat16").value == f"works on cpu, {expected}"


def test_a_precision_without_a_kernel_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.Tensor.to

    def to(self: torch.Tensor, *wanted: Any) -> torch.Tensor:
        if torch.float16 in wanted:
            raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'")
        return plain(self, *wanted)

    monkeypatch.setattr(torch.Tensor, "to", to)
    found = list(devices.check_precisions())
    assert "not implemented for 'Half'" in named(found, "float16").value
    assert named(found, "float16").status == "warn"


def test_the_kernel_of_packed_rows_is_named() -> None:
    found = list(devices.check_attentions())
    assert named(found, "packed rows").value.startswith("d2e_by_branch, by the CPU's flash kernel")
    assert "sdpa, eager" in named(found, "transformers").value

"""The device of these tests, and a file with their outcomes that is written after every one.

`D2E_DEVICE=cuda` fails where there is no GPU, `cpu` rehearses in tiny shapes; unset it is what is there. These tests
import neither datasets nor deepspeed, and nothing is loaded from the network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.model.device import usable_device
from d2e_sft.model.shapes import random_model

RESULTS = "D2E_GPU_RESULTS"  # a file of JSON lines


@dataclass(frozen=True)
class Machine:
    """Where the tests run, and the sizes that suit it."""

    device: torch.device

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def size(self, real: int, tiny: int) -> int:
        return real if self.on_cuda else tiny

    def model(self, shape: str = "qwen3-0.6b", layers: int = 4, dtype: torch.dtype = torch.float32) -> Any:
        """A published shape's first layers on a GPU, else a tiny model of the architecture; random weights.

        They are larger than at a training's start, so that choices are sharp and gradients are not tiny.
        """
        tiny = "tiny-qwen3" if shape.startswith("qwen3") else "tiny"
        model = random_model(shape if self.on_cuda else tiny, self.device, dtype, layers=min(layers, self.size(64, 2)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.mul_(2 if self.on_cuda and "embed" not in name else 8)
        return model.eval()


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    wanted = os.environ.get("D2E_DEVICE")
    if wanted not in (None, "", "cpu", "cuda"):
        pytest.fail(f"D2E_DEVICE={wanted!r}: expected cuda or cpu")
    if wanted == "cuda" and not torch.cuda.is_available():
        pytest.fail("D2E_DEVICE=cuda: torch finds no CUDA device")
    found = torch.device("cpu") if wanted == "cpu" else usable_device()
    if found.type not in ("cuda", "cpu"):
        pytest.skip(f"these tests are for CUDA, and rehearsed on a CPU; here is {found.type}")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # parity in float32 is not to be blurred by TF32
    yield Machine(found)
    torch.set_float32_matmul_precision(before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    outcome: Any = yield
    report, file = outcome.get_result(), os.environ.get(RESULTS)
    if file and (report.when == "call" or report.outcome != "passed"):
        why = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, tuple) else report.longreprtext
        line = {
            "test": item.nodeid.split("::", 1)[-1],
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "why": why[-2000:],
            **dict(item.user_properties),
        }
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")

"""The most memory that a stretch of code held."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.model.peak_memory import PeakMemory


@pytest.mark.skipif(torch.accelerator.is_available(), reason="measures the process, where there is no device")
def test_peak_memory_sees_what_was_freed_since() -> None:
    memory = PeakMemory()
    memory.reset()
    before = memory.peak_mb()
    held = torch.ones(50 * 2**18)  # 50 MB
    del held
    assert 45 < memory.peak_mb() - before < 60
    memory.reset()
    assert memory.peak_mb() - before < 20

"""The allocator setting takes hold where there is a glibc, and says so where there is none."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, torch
from d2e_sft.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def touch():
    for _ in range(20):
        torch.ones(16 * 2**20)  # 64 MB, freed at once
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is glibc's")
def test_memory_that_is_freed_and_taken_again_costs_no_page_faults() -> None:
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", _FAULTS, mode], capture_output=True, check=True).stdout)
        for mode in ("keep", "default")
    }
    assert faults["keep"] < 0.05 * faults["default"]

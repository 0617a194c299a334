"""Speed, clock and memory of a device."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from d2e_sft.model.device import LapTimer, PeakMemory, automatic_dtype, unslowed_seconds, without_cudnn_attention


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"bf16": True}, "bfloat16"),
     ({"avx512_f": True, "avx512_bf16": False}, "float32"), ({}, "float32")],
)  # fmt: skip
def test_the_processor_decides_about_bfloat16_and_no_clock(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("a clock was read"))
    assert automatic_dtype() == dtype


def test_the_time_of_a_loop_is_shared_out_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 5.0, 8.0, 10.0])
    monkeypatch.setattr("d2e_sft.model.device.time.perf_counter", lambda: next(clock))
    laps = LapTimer(torch.device("cpu"))
    assert laps.shares() == {}
    for part in ("data", "model", "data", "model"):  # 0–1 data, 1–4 model, 4–5 data, 5–8 model
        laps.enter(part)
    assert laps.shares() == {"data": 2 / 8, "model": 6 / 8}
    assert laps.shares() == {"model": 1.0}, "the next window begins where this one ended"


def test_time_without_a_processor_counts_for_nothing_and_that_of_any_thread_counts() -> None:
    cpu = torch.device("cpu")
    assert unslowed_seconds(lambda: time.sleep(0.4), cpu) < 0.2, "as while another program has the processor"

    def compute() -> None:
        end = time.thread_time() + 0.4
        while time.thread_time() < end:
            pass

    assert unslowed_seconds(compute, cpu) > 0.3
    with ThreadPoolExecutor(1) as other:
        assert unslowed_seconds(other.submit(compute).result, cpu) > 0.3 / torch.get_num_threads()


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


@pytest.mark.parametrize("found", [True, False])
def test_blocks_of_several_threads_leave_cudnns_attention_as_it_was(found: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(found)
    one, other = without_cudnn_attention(), without_cudnn_attention()
    with ExitStack() as later:
        later.callback(torch.backends.cuda.enable_cudnn_sdp, before)
        with one:
            other.__enter__()  # as another thread would, whose block ends later
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        other.__exit__(None, None, None)
        assert torch.backends.cuda.cudnn_sdp_enabled() is found

"""Where a step's time goes, by kind of operation, as torch's profiler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# The first kind of which a name in lower case has a part.
_PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "flash", "flex"),
    "matrix products": ("::mm", "::addmm", "::bmm", "::matmul", "::linear", "gemm"),
    "copies and fills": (
        "::copy_", "::fill_", "::zero_", "::cat", "::index", "::gather", "::scatter", "::repeat", "::embedding",
        "::clone",
    ),
    "views": (
        "::slice", "::as_strided", "::view", "::_unsafe_view", "::transpose", "::t", "::expand", "::select",
        "::unsqueeze", "::squeeze", "::reshape", "::permute", "::empty", "::unflatten", "::split", "::narrow",
        "::detach", "::to", "::_to_copy",
    ),
}  # fmt: skip
# Whatever else is an operator of torch's: sums, activations, norms, softmax.
_ELEMENTWISE = "elementwise and sums"
_REST = "engine and Python"
KINDS = (*_PARTS, _ELEMENTWISE, _REST)
# Other names begin with these.
_WHOLE = frozenset({"::t", "::to"})


def time_by_kind(act: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Run `act` once under the profiler.

    Returns:
        for each of `KINDS` its share of the time, of the device's own time on CUDA, else of the processor's. They add
        up to 1.
    """
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as profiled:
        act()
        if on_cuda:
            torch.cuda.synchronize(device)
    return shares(_own_times(profiled.key_averages(), on_cuda))


def shares(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Shares of each kind, from names of operations with the time that each took by itself."""
    sums = dict.fromkeys(KINDS, 0.0)
    for name, time in times:
        sums[kind_of(name)] += time
    whole = sum(sums.values()) or 1.0
    return {kind: time / whole for kind, time in sums.items()}


def kind_of(name: str) -> str:
    """The kind of an operation as the profiler names it, one of `KINDS`."""
    lower = name.lower()
    for kind, parts in _PARTS.items():
        if any(lower.endswith(part) if part in _WHOLE else part in lower for part in parts):
            return kind
    return _ELEMENTWISE if "::" in lower and not lower.startswith("autograd::") else _REST


def _own_times(averages: Iterable[Any], on_cuda: bool) -> list[tuple[str, float]]:
    # On CUDA an operation holds the time of its kernels, which stand in the list once more by names of their own.
    return [
        (event.key, float(event.self_device_time_total if on_cuda else event.self_cpu_time_total))
        for event in averages
        if event.device_type == DeviceType.CPU
    ]

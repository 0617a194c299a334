"""A step's time by kind of operation, from torch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# An operation has the first kind with a part of its lower-case name.
_PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "flash"),
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
# All other operators of torch: sums, activations, norms, softmax.
_ELEMENTWISE = "elementwise and sums"
_REST = "engine and Python"
KINDS = (*_PARTS, _ELEMENTWISE, _REST)
# These match only the end of a name, since longer names begin with them.
_WHOLE = frozenset({"::t", "::to"})


def time_by_kind(act: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Run `act` once under the profiler.

    Returns the share of each of `KINDS`, adding up to 1: of the device's time on CUDA, otherwise of the processor's.
    """
    on_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]) as profiled:
        act()
        if on_cuda:
            torch.cuda.synchronize(device)
    # On CUDA an operation includes the time of its kernels, which the profiler also lists on their own.
    events = [event for event in profiled.key_averages() if event.device_type == DeviceType.CPU]
    return shares([(e.key, float(e.self_device_time_total if on_cuda else e.self_cpu_time_total)) for e in events])


def shares(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the share of each kind, from pairs of an operation's name and its own time."""
    sums = dict.fromkeys(KINDS, 0.0)
    for name, time in times:
        sums[kind_of(name)] += time
    whole = sum(sums.values()) or 1.0
    return {kind: time / whole for kind, time in sums.items()}


def kind_of(name: str) -> str:
    """Return the kind of an operation, one of `KINDS`, by its name in the profile."""
    lower = name.lower()
    for kind, parts in _PARTS.items():
        if any(lower.endswith(part) if part in _WHOLE else part in lower for part in parts):
            return kind
    return _ELEMENTWISE if "::" in lower and not lower.startswith("autograd::") else _REST

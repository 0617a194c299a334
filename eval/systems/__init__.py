"""The benchmarks by name; one is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.systems.benchmark import Benchmark

# name → (module, attribute)
_BENCHMARKS: dict[str, tuple[str, str]] = {
    "boxes": ("eval.systems.boxes.benchmark", "BOXES"),
    "crepe": ("eval.systems.crepe.benchmark", "CREPE"),
    "openpi2": ("eval.systems.openpi2.benchmark", "OPENPI2"),
    "wiqa": ("eval.systems.wiqa.benchmark", "WIQA"),
}
SYSTEM_NAMES = tuple(_BENCHMARKS)
ROWS = "rows"  # any benchmark of rows: has a scorer only


def load_benchmark(name: str) -> Benchmark[Any, Any]:
    """Return the benchmark with this name, which is one of `SYSTEM_NAMES` or `rows`."""
    module, attribute = ("eval.systems.rows", "ROWS_BENCHMARK") if name == ROWS else _BENCHMARKS[name]
    benchmark: Benchmark[Any, Any] = getattr(importlib.import_module(module), attribute)
    return benchmark

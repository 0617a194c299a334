"""The benchmarks by name, or a user's own as `module:Class`; one is imported when it is used."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from d2e_sft.util.errors import UserError, did_you_mean

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


def is_system(name: str | None) -> bool:
    """Whether a benchmark has a scorer: one of `SYSTEM_NAMES`, or `module:Class` unless a file has that name."""
    return name is not None and (name in SYSTEM_NAMES or (":" in name and not Path(name).exists()))


class SystemName(click.ParamType[str]):
    """The name of a benchmark with a scorer, on the command line."""

    name = "system"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        known = (ROWS, *SYSTEM_NAMES)
        if value not in known and ":" not in value:
            expected = f"{', '.join(known)}, module:Class"
            self.fail(f"{value!r} is not one of {expected}.{did_you_mean(value, known)}", param, ctx)
        return value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"{{{'|'.join((ROWS, *SYSTEM_NAMES))}|module:Class}}"


def load_benchmark(name: str) -> Benchmark[Any, Any]:
    """Return the benchmark with this name: one of `SYSTEM_NAMES`, `rows`, or `module:Class`.

    Raises UserError if the class cannot be imported, is no `Benchmark`, or has the name of another one.
    """
    if ":" in name:
        return _own_benchmark(name)
    module, attribute = ("eval.systems.rows", "ROWS_BENCHMARK") if name == ROWS else _BENCHMARKS[name]
    benchmark: Benchmark[Any, Any] = getattr(importlib.import_module(module), attribute)
    return benchmark


def _own_benchmark(name: str) -> Benchmark[Any, Any]:
    from d2e_sft.config.functions import load_function
    from eval.systems.benchmark import Benchmark

    kind: Any = load_function(name, "benchmark")
    if not (isinstance(kind, type) and issubclass(kind, Benchmark)):
        raise UserError(f"benchmark {name}: got {kind!r:.60}; expected a subclass of LabelBenchmark or Benchmark")
    for attribute in ("name", "title", "official_files", "options", "score_options"):
        if not hasattr(kind, attribute):
            raise UserError(f"benchmark {name}: has no attribute {attribute!r}", "see examples/benchmark.py")
    if not kind.name.isidentifier() or kind.name in (ROWS, *SYSTEM_NAMES):
        expected = f"a name of letters, digits and underscores, other than {', '.join((ROWS, *SYSTEM_NAMES))}"
        raise UserError(f"benchmark {name}: its name is {kind.name!r}; expected {expected}")
    benchmark: Benchmark[Any, Any] = kind()
    return benchmark

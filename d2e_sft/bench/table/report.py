"""The table's file, which is written after each part and resumed, and the table itself."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from d2e_sft import __version__
from d2e_sft.bench.gpu import attempt
from d2e_sft.bench.step_rows import fields_table
from d2e_sft.bench.table.parts import PARTS
from d2e_sft.bench.table.row import Bench, Row
from d2e_sft.model.device import automatic_dtype, cpu_has_bfloat16, usable_device
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import read_json_as, write_json
from d2e_sft.util.table import Table

_PACKAGES = ("torch", "transformers", "trl", "datasets", "lm_eval")
FILE = "bench.json"


@dataclass
class Report:
    """The content of the file.

    Attributes:
        facts: What the figures depend on: machine, versions, model and sizes.
        rows: The lines of each part that was measured.
        skipped: Part → why it was not measured.
    """

    facts: dict[str, Any]
    date: str = ""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every part was measured."""
        return self.rows.keys() == PARTS.keys()


def bench_all(
    bench: Bench, minutes: float, only: Sequence[str] = (), progress: Callable[[str], object] = lambda line: None
) -> Report:
    """Measure the parts that the file in `bench.folder` lacks, and write it after each.

    A file of another machine, version, model or plan is replaced, and so is a complete one, or its parts in `only`.

    Args:
        minutes: No part starts after this time.
        only: Parts to measure; empty for all.

    Raises:
        UserError: a part is unknown, or the file is damaged.
    """
    for name in only:
        if name not in PARTS:
            raise UserError(f"--parts {name}: expected some of {', '.join(PARTS)}.{did_you_mean(name, PARTS)}")
    started, file = time.monotonic(), bench.folder / FILE
    report = _resumed(file, _facts(bench), only, progress)
    before = report.seconds
    for name in only or PARTS:
        if name in report.rows:
            continue
        rows: list[dict[str, Any]] = []
        if time.monotonic() - started >= 60 * minutes:
            reason: str | None = f"the {minutes:g} minutes were over"
        else:
            reason = attempt(partial(_measure, bench, PARTS[name], rows))
        report.seconds = round(before + time.monotonic() - started, 1)
        if reason is None:
            report.rows[name] = rows
            report.skipped.pop(name, None)
        else:
            report.skipped[name] = reason
        progress(f"{name}: {reason or 'measured'} ({report.seconds:.0f} s)")
        report.date = datetime.now(UTC).date().isoformat()
        write_json(file, asdict(report))
    return report


def _measure(bench: Bench, part: Callable[[Bench], Iterator[Row]], rows: list[dict[str, Any]]) -> None:
    rows += [asdict(row) for row in part(bench)]


def _resumed(file: Path, facts: dict[str, Any], only: Sequence[str], progress: Callable[[str], object]) -> Report:
    if not file.is_file():
        return Report(facts)
    report = read_json_as(Report, file, "measured figures", "delete it, and measure again")
    if report.facts != facts or (report.is_complete and not only):
        return Report(facts)
    if report.is_complete:
        report.rows = {name: rows for name, rows in report.rows.items() if name not in only}
    progress(f"{file}: resumed; it has {', '.join(report.rows) or 'nothing yet'}")
    report.skipped = {}
    return report


def _facts(bench: Bench) -> dict[str, Any]:
    return {
        "d2e_sft": __version__,
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "precision": automatic_dtype(),
        "versions": {name: version(name) for name in _PACKAGES if find_spec(name) is not None},
        "model": bench.model,
        "plan": {name: list(own) if isinstance(own, tuple) else own for name, own in asdict(bench.plan).items()},
    }


def machine() -> str:
    """Describe the accelerator, or the cores of the processor."""
    device = usable_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores of {name}{', bfloat16 in hardware' if cpu_has_bfloat16() else ''}"


# column → field and format
_COLUMNS = {
    "task": ("task", "{}"),
    "CPU s": ("cpu_s", "{:.3g}"),
    "clock s": ("clock_s", "{:.3g}"),
    "MB": ("peak_mb", "{:,.0f}"),
    "instead": ("peer", "{}"),
    "its CPU s": ("peer_cpu_s", "{:.3g}"),
    "its clock s": ("peer_clock_s", "{:.3g}"),
    "its MB": ("peer_peak_mb", "{:,.0f}"),
    "CPU / its CPU": ("ratio", "{:.2g}"),
    "same result": ("same", "{:.0%}"),
}


def as_table(report: Report) -> Table:
    """Return all rows as one table, with the machine and the date below it."""
    rows = [_flat(row) for part in PARTS for row in report.rows.get(part, ())]
    facts = report.facts
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    notes = [
        f"{facts['machine']}, {threads}, {report.date}; {facts['model']}; {versions}.",
        *(f"Not measured: {name} ({reason})." for name, reason in report.skipped.items()),
    ]
    table = fields_table(_COLUMNS, rows)
    return Table(table.frame, table.caption, notes, table.keys)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    theirs = row["theirs"] or {"clock_s": None, "cpu_s": None, "peak_mb": None}
    peer = f"{row['peer']}: {row['why']}" if row["why"] else row["peer"]
    return {**row, **row["ours"], **{f"peer_{name}": own for name, own in theirs.items()}, "peer": peer}

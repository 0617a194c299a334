"""The report of `d2e bench gpu`: its file, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.bench.shapes import Peaks
from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table


@dataclass
class Report:
    """The file's content; `skipped` holds cases with their reasons."""

    device: Peaks
    versions: dict[str, str]
    attention: dict[str, str] = field(default_factory=dict)
    training: list[dict[str, Any]] = field(default_factory=list)
    decoding: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Return the cases that ended in an error, such as engines that disagree on the loss."""
        return [one["case"] for one in self.skipped if one["reason"].startswith("failed")]

    def save(self, file: Path | None) -> None:
        """Write the whole file."""
        if file is not None:
            write_json(file, asdict(self))


def as_text(report: Report, write: Callable[[Table], str]) -> str:
    """Return the device, a table for training and one for decoding, and the skipped cases.

    Args:
        write: such as `Table.markdown`.
    """
    sheet = report.device.data_sheet_flops
    of = "its data sheet's" if sheet else "measured on a large product"
    lines = [
        f"{report.device.device}: {report.device.best_flops / 1e12:,.1f} TFLOP/s {of}, "
        f"{report.device.bytes_per_s / 1e9:,.0f} GB/s copying; "
        + ", ".join(f"{name} {number}" for name, number in report.versions.items()),
        *([write(_training_table(report.training))] if report.training else []),
        *([write(_decoding_table(report.decoding))] if report.decoding else []),
        *(f"skipped: {one['case']}: {one['reason']}" for one in report.skipped),
        f"{report.seconds:.0f} s in all",
    ]
    return "\n\n".join(lines)


def _training_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("shape", "engine", "ms", "± ms", "tokens/s", "MFU", "/ sft", "/ plain", "/ trl", "peak GB")
    cells = [
        [
            row["shape"], row["engine"] + (", original" if row["view_gradients"] == "original" else ""),
            f"{row['median_ms']:,.0f}",
            f"{row['spread_ms'] / 2:,.0f}", f"{row['view_tokens_per_s']:,.0f}",
            f"{100 * row['model_flop_utilisation']:.1f} %", f"{row['ratio_to_sft']:.2f}",
            f"{row['ratio_to_sft_plain']:.2f}",
            "" if row["ratio_to_trl"] is None else f"{row['ratio_to_trl']:.2f}", f"{row['peak_mb'] / 1024:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, cells, keys=2)


def _decoding_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("shape", "batch", "plain ms", "debiased ms", "/ plain", "/ guidance", "/ roofline", "same tokens")
    cells = [
        [
            row["shape"], str(row["batch"]), f"{row['plain_ms']:,.0f}", f"{row['debiased_ms']:,.0f}",
            f"{row['debiased_to_plain']:.2f}", f"{row['debiased_to_guidance']:.2f}",
            f"{row['debiased_to_roofline']:.1f}", f"{100 * row['same_tokens']:.0f} %",
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, cells, keys=2)

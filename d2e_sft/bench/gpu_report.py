"""The report of `d2e bench gpu`: its file, and its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.bench.shapes import Peaks
from d2e_sft.bench.step_rows import fields_table
from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table


@dataclass
class Report:
    """The file's content; `skipped` holds cases with their reasons."""

    device: Peaks
    versions: dict[str, str]
    attention: dict[str, str] = field(default_factory=dict)
    training: list[dict[str, Any]] = field(default_factory=list)
    answering: list[dict[str, Any]] = field(default_factory=list)
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


_TRAINING = {
    "shape": ("shape", "{}"),
    "case": ("case", "{}"),
    "engine": ("engine", "{}"),
    "ms": ("median_ms", "{:,.0f}"),
    "± ms": ("half_spread", "{:,.0f}"),
    "tokens/s": ("view_tokens_per_s", "{:,.0f}"),
    "MFU": ("model_flop_utilisation", "{:.1%}"),
    "/ sft": ("ratio_to_sft", "{:.2f}"),
    "/ plain": ("ratio_to_sft_plain", "{:.2f}"),
    "/ trl": ("ratio_to_trl", "{:.2f}"),
    "peak GB": ("peak_gb", "{:.1f}"),
}
_ANSWERING = {
    "shape": ("shape", "{}"),
    "task": ("task", "{}"),
    "way": ("way", "{}"),
    "samples / s": ("samples_per_s", "{:,.1f}"),
    "tokens / s": ("tokens_per_s", "{:,.0f}"),
    "× first": ("to_first", "{:.2f}"),
    "same": ("same", "{:.0%}"),
}
_DECODING = {
    "shape": ("shape", "{}"),
    "batch": ("batch", "{}"),
    "plain ms": ("plain_ms", "{:,.0f}"),
    "debiased ms": ("debiased_ms", "{:,.0f}"),
    "/ plain": ("debiased_to_plain", "{:.2f}"),
    "/ guidance": ("debiased_to_guidance", "{:.2f}"),
    "/ roofline": ("debiased_to_roofline", "{:.1f}"),
    "same tokens": ("same_tokens", "{:.0%}"),
}


def as_text(report: Report, write: Callable[[Table], str]) -> str:
    """Return the device, tables of what was measured, and skipped cases; `write` is such as `Table.markdown`."""
    device = report.device
    of = "its data sheet's" if device.data_sheet_flops else "measured on a large product"
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    training = [
        {
            **row,
            "engine": row["engine"] + (", original" if row["view_gradients"] == "original" else ""),
            "half_spread": row["spread_ms"] / 2,
            "peak_gb": row["peak_mb"] / 1024,
        }
        for row in report.training
    ]
    lines = [
        f"{device.device}: {device.best_flops / 1e12:,.1f} TFLOP/s {of}, "
        f"{device.bytes_per_s / 1e9:,.0f} GB/s copying; {versions}",
        *([write(fields_table(_TRAINING, training, keys=3))] if training else []),
        *([write(fields_table(_ANSWERING, report.answering, keys=3))] if report.answering else []),
        *([write(fields_table(_DECODING, report.decoding, keys=2))] if report.decoding else []),
        *(f"skipped: {one['case']}: {one['reason']}" for one in report.skipped),
        f"{report.seconds:.0f} s in all",
    ]
    return "\n\n".join(lines)

"""The paper's plot: accuracy by operations, changed and unchanged boxes side by side, with 95 % intervals."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE


def plot(scores: dict[str, Any]) -> str:
    """An SVG file of the model's and the baseline's accuracy."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": "boxes"}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for panel, changed in zip(axes, (True, False), strict=True):
            rows = [row for row in scores["by_numops"] if row["changed"] == changed]
            for index, (name, key) in enumerate((("model", "accuracy"), ("random baseline", "baseline"))):
                _curve(panel, name, index, rows, key)
            panel.set_title(f"{'changed' if changed else 'unchanged'} boxes")
            panel.set_xlabel("operations that touched the box")
            panel.set_ylim(-0.02, 1.02)
        axes[0].set_ylabel("accuracy")
        axes[0].legend(frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _curve(panel: Any, name: str, index: int, rows: Sequence[dict[str, Any]], key: str) -> None:
    means = [row[key]["mean"] for row in rows]
    below = [max(row[key]["mean"] - row[key]["low"], 0) for row in rows]
    above = [max(row[key]["high"] - row[key]["mean"], 0) for row in rows]
    panel.errorbar(
        [row["numops"] for row in rows],
        means,
        yerr=[below, above],
        label=name,
        color=COLOURS[index],
        linestyle=LINES[index],
        marker="o",
        markersize=3,
        capsize=2,
    )

"""A comparison by measures as a picture: a panel for each measure, a bar with its interval for each result."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import COLOURS, HATCHES, STYLE
from eval.compare.measures.comparison import MeasureComparison, MeasureRow

ENDINGS = (".svg", ".png", ".pdf")
MOST_PANELS = 6  # the first measures are the main ones


def check_plot(file: Path) -> None:
    """Check that the name ends in a kind of picture.

    Raises:
        UserError: it does not.
    """
    if file.suffix.lower() not in ENDINGS:
        raise UserError(f"--plot {file}: not a kind of picture; expected a name that ends in {', '.join(ENDINGS)}")


def write_plot(comparison: MeasureComparison, file: Path) -> None:
    """Write the picture in the format that its name ends in.

    Raises:
        UserError: unknown format.
    """
    check_plot(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({**STYLE, "svg.hashsalt": comparison.bench}):
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        chart(comparison).savefig(file, dpi=200, metadata=metadata)


def chart(comparison: MeasureComparison) -> Figure:
    """Horizontal bars from 0 with 95 % intervals; the first six measures."""
    rows = comparison.rows[:MOST_PANELS]
    height = 0.5 + len(rows) * (0.45 + 0.24 * len(comparison.labels))
    figure = Figure(figsize=(6.4, height), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    for panel, row in zip(panels, rows, strict=True):
        _bars(panel, comparison.labels, row)
    panels[-1].set_xlabel("percent, with 95 % bootstrap intervals")
    return figure


def _bars(panel: mpl.axes.Axes, labels: tuple[str, ...], row: MeasureRow) -> None:
    for place, score in enumerate(row.scores):
        mean, low, high = (100 * value for value in (score.mean, score.low, score.high))
        panel.barh(
            place,
            mean,
            xerr=[[max(mean - low, 0)], [max(high - mean, 0)]],
            color=COLOURS[place % len(COLOURS)],
            hatch=HATCHES[place % len(HATCHES)],
            edgecolor="white",
            capsize=2,
            height=0.75,
        )
    panel.set_yticks(range(len(labels)), labels)
    panel.invert_yaxis()
    panel.set_title(f"{row.name} ({row.n:,} {row.unit})", loc="left", fontsize=9)
    panel.grid(axis="x", color="#eeeeee")
    panel.set_axisbelow(True)

"""Draw docs/images/habit-ways.svg and habit-mechanism.svg from docs/results/habit.json.

`python docs/habit_pictures.py`; a test compares the pictures with the rows.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, STYLE
from eval.sweep.curves import PLAIN, Curve, Way, averaged, over_seeds, ways
from eval.sweep.rows import WITHOUT_CONTEXT, read_rows

DOCS = Path(__file__).resolve().parent
ROWS = DOCS / "results" / "habit.json"
AXES = ["seed", "strength", "data", "objective"]
STRENGTH, DEBIASED = 0.95, "d2e:alpha=0.5"
NAMES = {
    "sft": "SFT",
    "d2e": "D²E, gradient through all views",
    "d2e-original": "D²E, gradient through the original view",
    "teacher": "teacher",
    "product": "product",
}
# Data, objective and decoder of each row of the first picture, the best way first.
SHOWN = (
    ("swapped", "teacher", PLAIN),
    ("swapped", "sft", PLAIN),
    ("as-is", "teacher", PLAIN),
    ("as-is", "sft", PLAIN),
    ("as-is", "product", PLAIN),
    ("as-is", "d2e-original", DEBIASED),
    ("as-is", "d2e", DEBIASED),
)
Found = dict[Way, list[Curve]]


def way(data: str, objective: str, decoder: str) -> Way:
    """A way of the study at the drawn strength."""
    return Way((("strength", STRENGTH), ("data", data), ("objective", objective)), decoder)


def ways_picture(found: Found) -> Figure:
    """Aligned and conflict accuracy at the end of training: the mean over seeds and each seed as a point."""
    shown = [(one, found[way(*one)]) for one in SHOWN if way(*one) in found]
    figure = Figure(figsize=(7, 0.55 * len(shown) + 1.1), layout="constrained")
    panel = figure.add_subplot()
    for place, (_, curves) in enumerate(reversed(shown)):
        for key, colour, shift in (("aligned", COLOURS[1], 0.14), ("conflict", COLOURS[0], -0.14)):
            ends = [100 * curve.last[key] for curve in curves]
            label = f"{key} (the habit is {'right' if key == 'aligned' else 'wrong'})" if place == 0 else None
            panel.barh(place + shift, over_seeds(ends).mean, height=0.26, color=colour, alpha=0.55, label=label)
            panel.plot(ends, [place + shift] * len(ends), "o", color=colour, markersize=3.5)
    names = [f"{NAMES[objective]}{', swapped data' if data == 'swapped' else ''}" for (data, objective, _), _ in shown]
    seeds = [f"{name} ({len(curves)})" for name, (_, curves) in zip(names, shown, strict=True)]
    panel.set_yticks(range(len(shown)), list(reversed(seeds)), fontsize=9)
    panel.set(xlim=(0, 101), xlabel="answers that are right, percent (bars: mean over seeds; points: seeds)")
    figure.legend(loc="outside upper right", frameon=False, ncols=2, fontsize=9)
    return figure


def mechanism_picture(found: Found) -> Figure:
    """Answers during training: the habit without the context, and both kinds of rows with it."""
    objectives = [name for name in ("sft", "d2e", "d2e-original") if way("as-is", name, PLAIN) in found]
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    panels = figure.subplots(1, len(objectives), sharey=True, squeeze=False)[0]
    for panel, objective in zip(panels, objectives, strict=True):
        decoder = PLAIN if objective == "sft" else DEBIASED
        told = "answers" if objective == "sft" else "debiased answers"
        lines = (
            (WITHOUT_CONTEXT, "aligned", COLOURS[6], "--", "without the context: the habit"),
            (decoder, "aligned", COLOURS[1], "-", "answers as decoded: aligned"),
            (decoder, "conflict", COLOURS[0], "-", "answers as decoded: conflict"),
        )
        for answered, key, colour, style, label in lines:
            _draw(panel, found.get(way("as-is", objective, answered), []), key, colour, style, label)
        panel.set_title(f"{NAMES[objective].replace(', gradient', chr(10) + 'gradient')}", fontsize=9)
        panel.set(ylim=(-3, 103), xlabel=f"training steps ({told})")
        panel.xaxis.label.set_fontsize(8)
        panel.grid(color="#eeeeee", linewidth=0.6)
    panels[0].set_ylabel("percent")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=3, fontsize=8)
    return figure


def _draw(panel: Axes, curves: Sequence[Curve], key: str, colour: str, style: str, label: str) -> None:
    means = averaged(curves, key)
    steps, values = [step for step, *_ in means], [100 * mean.mean for _, mean, _ in means]
    panel.plot(steps, values, style, color=colour, linewidth=1.7, label=label)


def picture(draw: str) -> str:
    """One of the two as SVG text, the same for the same rows."""
    found = ways(read_rows(ROWS), AXES)
    with mpl.rc_context({**STYLE, "svg.hashsalt": draw}):
        figure = {"habit-ways": ways_picture, "habit-mechanism": mechanism_picture}[draw](found)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    for name in ("habit-ways", "habit-mechanism"):
        (DOCS / "images" / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        print(f"written: docs/images/{name}.svg")

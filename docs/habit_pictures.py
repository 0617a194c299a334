"""Draw the pictures of the studies on habits from the rows in docs/results.

`python docs/habit_pictures.py`; a test compares the pictures with the rows.
"""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from pandas import DataFrame

from d2e_sft.train.samples import PLAIN
from d2e_sft.util.html.figures import COLOURS, STYLE
from eval.compare.reading import VERDICT, Setting, averaged, over_seeds, settings
from eval.pages.sweep import onset_chart
from eval.run.journal import WITHOUT_CONTEXT
from eval.score.statistics import Interval
from eval.sweep.cells import read_rows

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "results"
STRENGTH, DEBIASED = 0.95, "d2e:alpha=0.5"
NAMES = {
    "sft": "SFT",
    "d2e": "D²E, gradient through all views",
    "d2e-original": "D²E, gradient through the original view",
    "no-distill": "D²E without the KL term, all views",
    "no-distill-original": "D²E without the KL term, original view",
    "teacher": "teacher",
    "product": "product",
    "prefer": "prefer (DPO)",
    "no-debias": "KL term, nothing subtracted",
}
DATA = {"swapped": ", swapped data", "likelihood": ", refined by likelihood"}


class Study(NamedTuple):
    """A file of rows, and the data, objective and decoder of the variants to draw, the best first."""

    rows: str
    shown: tuple[tuple[str, str, str], ...]
    strength: float | None = STRENGTH  # of the habit; None for rows without this axis
    subsets: tuple[str, str] = ("aligned (the habit is right)", "conflict (the habit is wrong)")

    def curves(self) -> dict[tuple[str, str, str], DataFrame]:
        """Return the rows of each data, objective and decoder, at the study's strength."""
        rows = DataFrame(read_rows(RESULTS / self.rows))
        rows = rows if self.strength is None else rows[rows["strength"] == self.strength]
        return {key: own.sort_values("step") for key, own in rows.groupby(["data", "objective", "decoder"])}


def ends_of(rows: DataFrame) -> DataFrame:
    return rows.sort_values(["seed", "step"]).groupby("seed").tail(1)


HABIT = Study(
    "habit.json",
    (
        ("swapped", "teacher", PLAIN),
        ("swapped", "sft", PLAIN),
        ("as-is", "teacher", PLAIN),
        ("as-is", "sft", PLAIN),
        ("as-is", "product", PLAIN),
        ("as-is", "d2e-original", DEBIASED),
        ("as-is", "d2e", DEBIASED),
    ),
)
CHOOSING = Study(
    "choosing-habit.json",
    (
        ("swapped", "prefer", PLAIN),
        ("swapped", "teacher", PLAIN),
        ("swapped", "sft", PLAIN),
        ("as-is", "prefer", PLAIN),
        ("as-is", "no-distill", DEBIASED),
        ("as-is", "teacher", PLAIN),
        ("as-is", "sft", PLAIN),
        ("as-is", "d2e", DEBIASED),
    ),
)

REVISED = Study(
    "revised.json",
    (
        ("swapped", "sft", PLAIN),
        ("as-is", "teacher", PLAIN),
        ("as-is", "d2e", DEBIASED),
        ("as-is", "no-distill", DEBIASED),
        ("swapped", "teacher", PLAIN),
        ("likelihood", "d2e", DEBIASED),
        ("as-is", "sft", PLAIN),
        ("swapped", "prefer", PLAIN),
        ("as-is", "no-debias", PLAIN),
    ),
    strength=None,
    subsets=("passages as trained", "revised passages"),
)


def ways_picture(study: Study) -> Figure:
    """Aligned and conflict accuracy at the end of training: mean, 95 % interval and seeds."""
    curves = study.curves()
    shown = [(key, ends_of(curves[key])) for key in study.shown if key in curves]
    figure = Figure(figsize=(7, 0.55 * len(shown) + 1.1), layout="constrained")
    panel = figure.add_subplot()
    for place, (_, last) in enumerate(reversed(shown)):
        for (key, colour, shift), subset in zip(
            (("aligned", COLOURS[1], 0.14), ("conflict", COLOURS[0], -0.14)), study.subsets, strict=True
        ):
            mean = over_seeds(last[key])
            label = subset if place == 0 else None
            panel.barh(place + shift, 100 * mean.mean, height=0.26, color=colour, alpha=0.55, label=label)
            panel.plot(100 * last[key], [place + shift] * len(last), "o", color=colour, markersize=3.5)
            panel.plot([100 * mean.low, 100 * mean.high], [place + shift] * 2, color="#444444", linewidth=1)
    called = NAMES | ({"d2e": "D²E-SFT"} if study.strength is None else {})
    names = [called[objective] + DATA.get(data, "") for (data, objective, _), _ in shown]
    seeds = [f"{name} ({len(last)})" for name, (_, last) in zip(names, shown, strict=True)]
    panel.set_yticks(range(len(shown)), list(reversed(seeds)), fontsize=9)
    panel.set(xlim=(0, 101))
    panel.set_xlabel("accuracy, percent\n(bars: mean; lines: 95 % interval; points: seeds)", fontsize=9)
    figure.legend(loc="outside upper right", frameon=False, ncols=2, fontsize=9)
    return figure


def mechanism_picture(study: Study) -> Figure:
    """Answers during training: the habit without the context, and both kinds of rows with it."""
    curves = study.curves()
    objectives = [name for name in ("sft", "d2e", "d2e-original") if ("as-is", name, PLAIN) in curves]
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
            means = averaged(curves["as-is", objective, answered], key)
            steps, values = [step for step, *_ in means], [100 * mean.mean for _, mean, _ in means]
            panel.plot(steps, values, style, color=colour, linewidth=1.7, label=label)
        panel.set_title(f"{NAMES[objective].replace(', gradient', chr(10) + 'gradient')}", fontsize=9)
        panel.set(ylim=(-3, 103), xlabel=f"training steps ({told})")
        panel.xaxis.label.set_fontsize(8)
        panel.grid(color="#eeeeee", linewidth=0.6)
    panels[0].set_ylabel("percent")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=3, fontsize=8)
    return figure


def by_decoding(file: str) -> dict[str, dict[str, dict[str, Interval]]]:
    """Objective → decoding → `aligned`, `conflict`, `habit` → share over seeds, of a sweep scored in several ways.

    `habit` is the share of conflict rows that are answered with the habit.
    """
    ends: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in json.loads((RESULTS / file).read_text(encoding="utf-8"))["rows"]:
        values, decoding = row.get("values", row), row.get("values", {}).get("evaluation", "default")
        if decoding != "default" and row["scores"] is not None and float(values["strength"]) == STRENGTH:
            at = ends.setdefault(values["objective"], {}).setdefault(decoding, {})
            own = row["subsets"]["subsets"]
            accuracies = {key: own[key]["accuracy"] for key in ("aligned", "conflict")}
            for key, value in {**accuracies, "habit": own["conflict"]["habit_rate"]}.items():
                at.setdefault(key, []).append(value["mean"])
    return {
        objective: {decoding: {key: over_seeds(own) for key, own in at.items()} for decoding, at in found.items()}
        for objective, found in ends.items()
    }


def alpha_picture(file: str) -> Figure:
    """Accuracy and habit by the α of decoding: mean and 95 % interval over seeds, one seed without."""
    found = by_decoding(file)
    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    decodings = list(next(iter(found.values())))
    told = {"aligned": "aligned: right", "conflict": "conflict: right", "habit": "conflict: the habit"}
    for panel, (key, title) in zip(panels, told.items(), strict=True):
        for index, (objective, at) in enumerate(found.items()):
            own = [at[decoding][key] for decoding in decodings]
            bounds = [(100 * (one.mean - one.low), 100 * (one.high - one.mean)) for one in own]
            panel.errorbar(
                [place + 0.13 * (index - len(found) / 2) for place in range(len(own))],
                [100 * one.mean for one in own],
                list(zip(*bounds, strict=True)),
                label=NAMES[objective],
                color=COLOURS[index],
                linestyle="none",
                marker="o",
                markersize=4,
                elinewidth=0.8,
            )
        panel.set_xticks(range(len(decodings)), [name.replace("-", "\n") for name in decodings], fontsize=8)
        panel.set_title(title, fontsize=9)
        panel.set(ylim=(-3, 103), xlabel="α of decoding")
        panel.grid(color="#eeeeee", linewidth=0.6)
    panels[0].set_ylabel("percent of the answers")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, ncols=2, fontsize=8)
    return figure


READS = {
    "sft, swapped": "SFT, swapped data",
    "d2e, balanced (d2e:alpha=0.5)": "D²E, balanced rows",
    "teacher, as-is": "teacher",
    "sft, balanced": "SFT, balanced rows",
    "sft, as-is": "SFT",
    "no-distill, as-is (d2e:alpha=0.5)": "D²E without the KL term",
    "d2e, as-is (d2e:alpha=0.5)": "D²E, published objective",
}
ALL = {**READS, "teacher, balanced": "teacher, balanced rows"}


def curves_of(file: str, reference: Mapping[str, str], objective: str | None = None) -> Setting:
    """A study of whole curves at learning rate 1e-3 and strength 0.95; of all objectives or one."""
    rows = [row for row in read_rows(RESULTS / file) if (row["rate"], row["strength"]) == ("1e-3", 0.95)]
    rows = [row for row in rows if objective in (None, row["objective"])]
    [setting] = settings(("rate", "strength", "seed", "data", "objective"), reference, rows)
    return setting


def reading(file: str = "reads.json", variants: Mapping[str, str] = READS) -> Setting:
    """Such a study with its `variants` by name, each as it is to be decoded, set against plain SFT."""
    setting = curves_of(file, {"objective": "sft", "data": "as-is"})
    curves = {name: setting.curves[variant] for variant, name in variants.items() if variant in setting.curves}
    compared = {name: setting.compared[variant] for variant, name in variants.items() if variant in setting.compared}
    return replace(setting, curves=curves, compared=compared, reference=variants[setting.reference])


def front_rows() -> list[str]:
    """Return the cells of README's table: where each way ends on both kinds of rows, and when it reads."""
    setting, cells = reading(), []
    for name in setting.curves:
        ends = [f"{100 * mean(values):.0f}" for values in setting.plateaus(name).values()]
        onset = setting.onset(name, VERDICT)
        median = onset.median().mean
        cells.append(
            " | ".join([*ends, f"{len(onset.reached)} of {onset.seeds}", f"{median:.0f}" if median < inf else "–"])
        )
    return cells


def balance_of_d2e() -> str:
    """Return what balanced rows change for D²E as published, over its own seeds."""
    setting = curves_of("reads.json", {"data": "as-is"}, "d2e")
    onset = setting.compared["balanced (d2e:alpha=0.5)"].onsets[VERDICT]
    return f"D²E on balanced rows against D²E, reads 70 %: p {onset.p_value:.4f}, corrected {onset.adjusted_p:.3f}"


def onset_picture(file: str, variants: Mapping[str, str]) -> Figure:
    """The share of seeds that read, over compute."""
    setting = reading(file, variants)
    return onset_chart(setting, list(setting.curves))


FIGURES: dict[str, Callable[[], Figure]] = {
    "habit-ways": partial(ways_picture, HABIT),
    "habit-mechanism": partial(mechanism_picture, HABIT),
    "choosing-ways": partial(ways_picture, CHOOSING),
    "revised-ways": partial(ways_picture, REVISED),
    "reads-onset": partial(onset_picture, "reads.json", ALL),
    "relations-onset": partial(onset_picture, "relations.json", ALL),
    "choosing-alpha": partial(alpha_picture, "choosing-alpha.json"),
}


def picture(name: str) -> str:
    """One of `FIGURES` as SVG text, the same for the same rows."""
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        buffer = io.StringIO()
        FIGURES[name]().savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    for name in FIGURES:
        (DOCS / "images" / f"{name}.svg").write_text(picture(name), encoding="utf-8")
        print(f"written: docs/images/{name}.svg")
    print(balance_of_d2e(), "cells of README's table:", *front_rows(), sep="\n")

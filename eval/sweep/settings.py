"""Curves in words and tables: for each setting, which ways of training are better than the reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from d2e_sft.util.table import Table, percent
from eval.compare.figures import corrected_p, points
from eval.sweep.curves import Contrast, Curve, Way, accuracies, contrasts, over_seeds, ways
from eval.sweep.rows import WITHOUT_CONTEXT, Row, typed
from eval.sweep.spec import SEED

CAPTION = (
    "Accuracy at the end of training. Δ is the difference to the reference between the means over the curves, at "
    "equal compute, in percentage points with its 95 % interval. At end is that where the shorter curve ends. The "
    "second table compares the ends of training, so at equal steps, also on further datasets. "
    "P-values are those of a paired t-test over seeds, corrected for the ways of a setting (Holm)."
)


@dataclass(frozen=True)
class Setting:
    """Ways of training with one reference: they share the values of the axes that the reference leaves open.

    Attributes:
        name: `strength 0.95`; empty if the reference names all axes.
        axes: Axes that name the ways of the setting.
        found, compared: All ways with their curves, and against the reference, corrected within the setting.
    """

    name: str
    axes: tuple[str, ...]
    reference: Way
    found: dict[Way, list[Curve]]
    compared: list[Contrast]

    @property
    def shown(self) -> dict[Way, list[Curve]]:
        """Return the ways that use the context."""
        return {way: curves for way, curves in self.found.items() if way.decoder != WITHOUT_CONTEXT}


def settings(
    axes: Sequence[str], reference: dict[str, str], rows: Sequence[Row], basis: str = "cpu_seconds"
) -> list[Setting]:
    """Return the settings whose reference was measured."""
    axes = [axis for axis in axes if axis != SEED]
    values = {axis: typed(value) for axis, value in reference.items()}
    fixed = [axis for axis in axes if axis not in values]
    groups: dict[tuple[Any, ...], dict[Way, list[Curve]]] = {}
    for way, curves in ways(rows, [*axes, SEED]).items():
        groups.setdefault(tuple(dict(way.values)[axis] for axis in fixed), {})[way] = curves
    made: list[Setting] = []
    for own, found in sorted(groups.items(), key=lambda item: str(item[0])):
        wanted = values | dict(zip(fixed, own, strict=True))
        base = Way(tuple((axis, wanted[axis]) for axis in axes), "plain")
        if base in found:
            name = ", ".join(f"{axis} {value}" for axis, value in zip(fixed, own, strict=True))
            varying = [axis for axis in values if len({dict(way.values)[axis] for way in found}) > 1]
            compared = contrasts(found, values, basis=basis)
            made.append(Setting(name, tuple(varying or values), base, found, compared))
    return made


def verdicts(setting: Setting) -> list[str]:
    """Return one line per decided way, the best first, and the number of undecided ones."""
    reference = setting.reference.name(setting.axes)
    decided = [one for one in setting.compared if one.verdict in ("better", "worse")]
    tested = [one for one in setting.compared if one.seeds > 1]
    lines = []
    for one in sorted(decided, key=lambda one: -one.over_curve["conflict"].mean):
        conflict, aligned = one.over_curve["conflict"], one.over_curve["aligned"]
        lines.append(
            f"{one.way.name(setting.axes)} is {one.verdict} than {reference}: "
            f"conflict {points(conflict, star=False)}, aligned {100 * aligned.mean:+.1f}, "
            f"p {corrected_p(conflict)}, {one.seeds} seeds"
        )
    left = len(tested) - len(decided)
    if left:
        lines.append(f"not decided against {reference}: {left} of {len(tested)} ways of several seeds")
    return lines


def ends_table(setting: Setting) -> Table:
    """Return a row per way and accuracy: where training ended, and the difference to the reference there."""
    compared = {one.way: one for one in setting.compared}
    keys = {way: accuracies(curves) for way, curves in setting.shown.items()}
    several = any("_" in key for own in keys.values() for key in own)  # datasets
    lines = []
    for way, curves in setting.shown.items():
        one = compared.get(way)
        for key in keys[way]:
            subset, _, dataset = key.partition("_")
            change = one.after_training.get(key) if one is not None and one.seeds > 1 else None
            accuracy = percent(over_seeds([curve.last[key] for curve in curves]).mean)
            apart = "" if change is None else points(change, star=False)
            of = [subset, dataset] if several else [subset]
            lines.append([way.name(setting.axes), str(len(curves)), *of, accuracy, apart, corrected_p(change)])
    columns = ["way", "seeds", "subset", *(["dataset"] if several else []), "accuracy", "Δ at equal steps", "p"]
    return Table.of(columns, lines)


def setting_table(setting: Setting) -> Table:
    """Return a row per way: accuracies at its end, and differences at equal compute."""
    compared = {one.way: one for one in setting.compared}
    lines = []
    for way, curves in setting.shown.items():
        end = [percent(float(np.mean([curve.last[key] for curve in curves]))) for key in ("aligned", "conflict")]
        one = compared.get(way)
        if one is None:
            rest = ["1.0", *end, "", "", "", "", "reference" if way == setting.reference else "no common seed"]
        else:
            aligned, conflict = one.over_curve["aligned"], one.over_curve["conflict"]
            at_end, tested = one.at_end["conflict"], one.seeds > 1
            rest = [f"{one.cost:.1f}", *end, f"{100 * aligned.mean:+.1f}", points(conflict, star=False)]
            rest.append(corrected_p(conflict if tested else None))
            rest += [f"{100 * at_end.mean:+.1f}, p {corrected_p(at_end if tested else None)}", one.verdict]
        lines.append([way.name(setting.axes), str(len(curves)), *rest])
    columns = ["way", "seeds", "cost", "aligned", "conflict", "Δaligned", "Δconflict", "p", "at end", "verdict"]
    return Table.of(columns, lines)

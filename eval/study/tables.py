"""A study's results: a table for each setting, and a line for each verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.score.statistics import Difference, Interval
from eval.study.rows import WITHOUT_CONTEXT, Row, typed
from eval.study.study import SEED, Study
from eval.study.summary import Contrast, Curve, Way, contrasts, ways


@dataclass(frozen=True)
class Setting:
    """What is compared with one reference: all ways that share the values of the other axes.

    Attributes:
        name: `strength 0.95`; empty where the reference names all axes.
        axes: those by which the ways of the setting are told apart.
        found: the ways and their curves, the reference among them.
        compared: the ways against the reference, corrected within the setting.
    """

    name: str
    axes: tuple[str, ...]
    reference: Way
    found: dict[Way, list[Curve]]
    compared: list[Contrast]


def settings(study: Study, rows: Sequence[Row], basis: str = "cpu_seconds") -> list[Setting]:
    """The settings that have their reference, in the order of the rows."""
    axes = [axis for axis in study.axes if axis != SEED]
    reference = {axis: typed(value) for axis, value in study.reference.items()}
    fixed = [axis for axis in axes if axis not in reference]
    groups: dict[tuple[Any, ...], dict[Way, list[Curve]]] = {}
    for way, curves in ways(rows, list(study.axes)).items():
        of = dict(way.values)
        groups.setdefault(tuple(of[axis] for axis in fixed), {})[way] = curves
    made: list[Setting] = []
    for values, found in sorted(groups.items(), key=lambda item: str(item[0])):
        wanted = reference | dict(zip(fixed, values, strict=True))
        base = Way(tuple((axis, wanted[axis]) for axis in axes), "plain")
        if base in found:
            name = ", ".join(f"{axis} {value}" for axis, value in zip(fixed, values, strict=True))
            compared = contrasts(found, reference, basis=basis)
            told = [axis for axis in reference if len({dict(way.values)[axis] for way in found}) > 1]
            made.append(Setting(name, tuple(told or reference), base, found, compared))
    return made


def study_tables(found: Sequence[Setting], write: Callable[[Table], str]) -> str:
    """Each setting as text: its verdicts, then its table.

    Args:
        write: such as `Table.markdown`.
    """
    parts = [
        "Accuracy at the end of training; differences to the reference at equal compute, in percentage points with\n"
        "95 % intervals: of the means over the curves (Δ), and where the shorter curve ends (at end). p of a paired\n"
        "t-test over seeds, corrected for the ways of a setting."
    ]
    for setting in found:
        if setting.name:
            parts.append(f"## {setting.name[0].upper()}{setting.name[1:]}")
        parts.append("\n".join(f"- {line}" for line in verdicts(setting)))
        parts.append(write(setting_table(setting)))
    return "\n\n".join(parts)


def verdicts(setting: Setting) -> list[str]:
    """What is decided, the best way first; one line where nothing is."""
    reference = setting.reference.name(setting.axes)
    decided = [one for one in setting.compared if one.verdict.startswith("reads")]
    tested = [one for one in setting.compared if one.seeds > 1]
    lines = []
    for one in sorted(decided, key=lambda one: -one.over_curve["conflict"].mean):
        conflict, aligned = one.over_curve["conflict"], one.over_curve["aligned"]
        lines.append(
            f"{one.way.name(setting.axes)} {one.verdict} than {reference}: conflict {points(conflict)}, aligned "
            f"{100 * aligned.mean:+.1f}, p {p_of(conflict)}, {one.seeds} seeds"
        )
    left = len(tested) - len(decided)
    if left:
        lines.append(f"not decided against {reference}: {left} of {len(tested)} ways of several seeds")
    return lines


def setting_table(setting: Setting) -> Table:
    """A row a way: accuracies at its end, and differences to the reference at equal compute."""
    columns = ["way", "seeds", "cost", "aligned", "conflict", "Δaligned", "Δconflict", "p", "at end", "verdict"]
    lines = []
    for way, curves in setting.found.items():
        if way.decoder == WITHOUT_CONTEXT:
            continue
        one = next((one for one in setting.compared if one.way == way), None)
        end = {key: _mean(curves, key) for key in ("aligned", "conflict")}
        cells = [way.name(setting.axes), str(len(curves))]
        if one is None:
            cells += ["1.0", percent(end["aligned"]), percent(end["conflict"]), "", "", "", "", "reference"]
        else:
            aligned, conflict = one.over_curve["aligned"], one.over_curve["conflict"]
            cells += [f"{one.cost:.1f}", percent(end["aligned"]), percent(end["conflict"])]
            cells += [f"{100 * aligned.mean:+.1f}", points(conflict), p_of(conflict)]
            cells += [f"{100 * one.at_end['conflict'].mean:+.1f}, p {p_of(one.at_end['conflict'])}", one.verdict]
        lines.append(cells)
    return Table.of(columns, lines)


def points(difference: Interval) -> str:
    """`+12.3 [4.0, 20.6]`, in percentage points; of one seed `+12.3`."""
    if math.isinf(difference.low):
        return f"{100 * difference.mean:+.1f}"
    return f"{100 * difference.mean:+.1f} [{100 * difference.low:.1f}, {100 * difference.high:.1f}]"


def p_of(difference: Difference) -> str:
    """The corrected p-value as a text; a dash where nothing was tested."""
    if math.isinf(difference.low):
        return percent(None)
    p = difference.p_value if difference.adjusted_p is None else difference.adjusted_p
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _mean(curves: Sequence[Curve], key: str) -> float:
    return float(sum(curve.last[key] for curve in curves) / len(curves))

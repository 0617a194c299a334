"""Accuracy during training: the rows of the results file, curves over seeds, and variants compared with a reference.

A row of the probe has the value of each axis and these fields. `samples` and `step` are those trained so far.
`aligned` and `conflict` are shares of a subset's samples, `n` is its size; `conflict_DATASET` is that of a further
dataset of the probe. `seconds` and `cpu_seconds` are those of training so far; the latter depends little on other work
on the machine. `overrides` are those of the call, if any. The file also has a row for each scored point.

Runs are paired by seed: intervals and p-values are those of a paired t-test over seeds (Student 1908), corrected for
all variants of one table (Holm 1979).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import CHECKSUMS, load_yaml, read_results, with_checksums, write_whole
from d2e_sft.util.table import Table, percent
from eval.compare.figures import corrected_p, points
from eval.score.statistics import LEVEL, Difference, Interval, holm
from eval.sweep.spec import SEED

Row = dict[str, Any]
WITHOUT_CONTEXT, PLAINLY = "without_context", "plain"  # decoders of rows
ACCURACIES = ("aligned", "conflict")
CAPTION = (
    "Accuracy at the end of training. Δ is the difference to the reference between the means over the curves, at "
    "equal compute, in percentage points with its 95 % interval. At end is that where the shorter curve ends. The "
    "second table compares the ends of training, so at equal steps, also on further datasets. "
    "P-values are those of a paired t-test over seeds, corrected for the variants of a setting (Holm)."
)


def rows_of_run(run: Path, recipe: Recipe, values: Mapping[str, str], overrides: Mapping[str, str]) -> list[Row]:
    """Return the rows of a finished training, from its log; UserError if it has no accuracy by subset."""
    file, rows = run / "trainer_state.json", list[Row]()
    for entry in json.loads(file.read_text(encoding="utf-8"))["log_history"]:
        for name in (PLAIN, DEBIASED, IMAGINED):
            prefix = f"{PREFIX}{name}_"
            if f"{prefix}conflict" not in entry:
                continue
            decoder = {PLAIN: PLAINLY, IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
            starts = tuple(f"{prefix}{subset}" for subset in PROBED)
            rows.append(
                {
                    **{axis: typed(value) for axis, value in values.items()},
                    "decoder": decoder,
                    "samples": int(entry["step"]) * recipe.train.batch_size,
                    "step": int(entry["step"]),
                    **{key.removeprefix(prefix): round(entry[key], 4) for key in entry if key.startswith(starts)},
                    "n": int(entry[f"{PREFIX}n"]),
                    "seconds": round(entry[f"{PREFIX}train_seconds"], 3),
                    "cpu_seconds": round(entry[f"{PREFIX}train_cpu_seconds"], 3),
                    **({"overrides": dict(overrides)} if overrides else {}),
                }
            )
    if not rows:
        raise UserError(
            f"{file}: no accuracy by subset; expected probed rows whose subset is aligned or conflict",
            remedy="let the sweep's `build` make data with tagged test rows, such as --datasets habit",
        )
    return rows


def read_rows(file: Path) -> list[Row]:
    """Return the rows of the probe, none without a file; UserError if it holds no rows, or was edited."""
    if not file.is_file():
        return []
    content = read_results(dict[str, list[Row]], file, "the rows of a sweep", "restore it, or name another: --results")
    return [row for row in content.get("rows", []) if "step" in row]


def write_rows(rows: Sequence[Row], file: Path) -> None:
    """Write all rows, one per line, and their checksum."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    sums = json.dumps(with_checksums({"rows": rows})[CHECKSUMS])
    write_whole(file, f'{{"rows": [\n{lines}\n],\n"{CHECKSUMS}": {sums}}}\n')


def refuse_other_overrides(rows: Iterable[Row], asked: Mapping[str, str], file: Path) -> None:
    """Raise UserError if some rows were measured with other overrides than this call: one table would show both."""

    def words(overrides: Mapping[str, str]) -> str:
        return " ".join(f"{key}={value}" for key, value in overrides.items()) or "the file's own settings"

    for other in (row.get("overrides", {}) for row in rows):
        if other != asked:
            raise UserError(
                f"{file}: has rows measured with {words(other)}; this call asks for {words(asked)}",
                remedy="keep these in another file, --results FILE" + (f", or give {words(other)}" if other else ""),
            )


def rows_of(rows: Iterable[Row], values: Mapping[str, str]) -> list[Row]:
    """Return the rows with these values of axes."""
    wanted = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in wanted.items())]


def typed(name: str) -> Any:
    """Return a value's name as a number if it is one."""
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name


@dataclass(frozen=True)
class Variant:
    """A way to train and decode: the values of all axes but the seed, as the rows have them, and a decoder."""

    values: tuple[tuple[str, Any], ...]
    decoder: str

    def name(self, axes: Sequence[str]) -> str:
        """Return the values of these axes, and the decoder unless it is plain."""
        values = dict(self.values)
        parts = [str(values[axis]) for axis in axes]
        return ", ".join(parts) + ("" if self.decoder == PLAINLY else f" ({self.decoder})")


@dataclass(frozen=True)
class Curve:
    """One run of a variant: its rows in the order of steps."""

    seed: Any
    rows: list[Row]

    def at(self, key: str, basis: str, where: float) -> float:
        """Return the value of `key` where `basis` (`step`, `cpu_seconds`) is `where`, interpolated linearly."""
        return float(np.interp(where, self.column(basis), self.column(key)))

    def mean(self, key: str, basis: str, where: float) -> float:
        """Return the mean of `key` over `basis` from the first row to `where`."""
        x, y = self.column(basis), self.column(key)
        inner = x < where
        x, y = np.append(x[inner], where), np.append(y[inner], self.at(key, basis, where))
        width = x[-1] - x[0]
        return float(np.trapezoid(y, x) / width) if width > 0 else float(y[0])

    def column(self, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([row[key] for row in self.rows], dtype=np.float64)

    @property
    def last(self) -> Row:
        return self.rows[-1]


def variants(rows: Iterable[Row], axes: Sequence[str]) -> dict[Variant, list[Curve]]:
    """Return the curves of each variant, one per seed."""
    by_seed: dict[Variant, dict[Any, list[Row]]] = {}
    for row in rows:
        variant = Variant(tuple((axis, row[axis]) for axis in axes if axis != SEED), row["decoder"])
        by_seed.setdefault(variant, {}).setdefault(row[SEED], []).append(row)
    return {
        variant: [Curve(seed, sorted(rows, key=lambda row: row["step"])) for seed, rows in sorted(seeds.items())]
        for variant, seeds in by_seed.items()
    }


def accuracies(curves: Iterable[Curve]) -> list[str]:
    """Return the accuracies that the rows of all curves have: of both subsets, and of those of further datasets."""
    ends = [curve.last for curve in curves]
    return [key for key in ends[0] if key.startswith(ACCURACIES) and all(key in end for end in ends)]


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean over seeds with its t interval; for one seed the interval is the value."""
    change = paired(values)
    return Interval(change.mean, *((change.low, change.high) if len(values) > 1 else (change.mean, change.mean)))


def averaged(curves: Sequence[Curve], key: str) -> list[tuple[int, Interval, int]]:
    """Return (step, mean over seeds, number of seeds) for each step."""
    values: dict[int, list[float]] = {}
    for row in (row for curve in curves for row in curve.rows):
        values.setdefault(row["step"], []).append(row[key])
    return [(step, over_seeds(accuracy), len(accuracy)) for step, accuracy in sorted(values.items())]


@dataclass(frozen=True)
class Contrast:
    """A variant compared with its reference, over the seeds that both have.

    Attributes:
        at_end: Subset → difference at equal compute, at the end of the shorter of the two runs.
        after_training: Subset → difference where both have ended; so at equal steps. Also of further datasets.
        over_curve: Subset → difference between the means over the curves up to there.
        cost: Compute per step, as a multiple of the reference's.
    """

    variant: Variant
    seeds: int
    at_end: dict[str, Difference]
    after_training: dict[str, Difference]
    over_curve: dict[str, Difference]
    cost: float

    @property
    def verdict(self) -> str:
        """Return `better`, `worse` (conflict accuracy over the curve, corrected p), `not decided` or `one seed`."""
        if self.seeds < 2:
            return "one seed"
        conflict = self.over_curve["conflict"]
        if not conflict.significant:
            return "not decided"
        return "better" if conflict.mean > 0 else "worse"


def contrasts(
    curves_of: Mapping[Variant, Sequence[Curve]], reference: Mapping[str, Any], *, basis: str = "cpu_seconds"
) -> list[Contrast]:
    """Compare each variant with the plainly decoded reference; Holm's correction covers all of several seeds.

    Args:
        reference: axis → value; for axes that it does not name, the reference has the variant's own value.
        basis: equal compute means equal `cpu_seconds`, `seconds` or `step`.
    """
    compared: list[Contrast] = []
    for variant, curves in curves_of.items():
        base = Variant(tuple((axis, reference.get(axis, value)) for axis, value in variant.values), PLAINLY)
        if variant.decoder == WITHOUT_CONTEXT or variant == base or base not in curves_of:
            continue
        by_seed = {curve.seed: curve for curve in curves_of[base]}
        pairs = [(by_seed[curve.seed], curve) for curve in curves if curve.seed in by_seed]
        if pairs:
            compared.append(_contrast(variant, pairs, basis))
    tested = [contrast for contrast in compared if contrast.seeds > 1]  # a single seed is no test
    for measured in ("at_end", "after_training", "over_curve"):
        differences: list[dict[str, Difference]] = [getattr(contrast, measured) for contrast in tested]
        for key in dict.fromkeys(key for of_variant in differences for key in of_variant):
            having = [of_variant for of_variant in differences if key in of_variant]
            for of_variant, p in zip(having, holm([each[key].p_value for each in having]), strict=True):
                of_variant[key] = replace(of_variant[key], adjusted_p=float(p))
    return compared


def _contrast(variant: Variant, pairs: Sequence[tuple[Curve, Curve]], basis: str) -> Contrast:
    limits = [min(first.last[basis], second.last[basis]) for first, second in pairs]

    def differences(measure: Callable[[Curve, str, float], float]) -> dict[str, Difference]:
        ends = list(zip(pairs, limits, strict=True))
        return {
            key: paired([measure(curve, key, limit) - measure(base, key, limit) for (base, curve), limit in ends])
            for key in ACCURACIES
        }

    ends = {
        key: paired([second.last[key] - first.last[key] for first, second in pairs])
        for key in accuracies([curve for pair in pairs for curve in pair])
    }
    costs = [
        (second.last["cpu_seconds"] / second.last["step"]) / (first.last["cpu_seconds"] / first.last["step"])
        for first, second in pairs
        if first.last["step"] and second.last["step"] and first.last["cpu_seconds"]
    ]
    return Contrast(
        variant,
        len(pairs),
        differences(lambda curve, key, limit: curve.at(key, basis, limit)),
        ends,
        differences(lambda curve, key, limit: curve.mean(key, basis, limit)),
        float(np.median(costs)) if costs else math.nan,
    )


def paired(changes: Sequence[float]) -> Difference:
    """Return the mean of paired differences with its t interval and p; for one pair the interval is infinite."""
    mean = float(np.mean(changes))
    if len(changes) < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    if np.ptp(changes) < 1e-9:  # the same for every seed, so no variance to test against: p of a sign-flip test
        return Difference(mean, mean, mean, 1.0 if abs(mean) < 1e-9 else 2.0 ** (1 - len(changes)))
    from scipy.stats import ttest_1samp

    test = ttest_1samp(changes, 0)
    bounds = test.confidence_interval(LEVEL)
    return Difference(mean, float(bounds.low), float(bounds.high), float(test.pvalue))


@dataclass(frozen=True)
class Setting:
    """Variants with one reference: they share the values of the axes that the reference leaves open.

    Attributes:
        name: `strength 0.95`; empty if the reference names all axes.
        axes: Axes that name the variants of the setting.
        variants, compared: All variants with their curves, and against the reference, corrected within the setting.
    """

    name: str
    axes: tuple[str, ...]
    reference: Variant
    variants: dict[Variant, list[Curve]]
    compared: list[Contrast]

    @property
    def shown(self) -> dict[Variant, list[Curve]]:
        """Return the variants that use the context."""
        return {variant: curves for variant, curves in self.variants.items() if variant.decoder != WITHOUT_CONTEXT}


def settings(
    axes: Sequence[str], reference: dict[str, str], rows: Sequence[Row], basis: str = "cpu_seconds"
) -> list[Setting]:
    """Return the settings whose reference was measured."""
    axes = [axis for axis in axes if axis != SEED]
    values = {axis: typed(value) for axis, value in reference.items()}
    fixed = [axis for axis in axes if axis not in values]
    groups: dict[tuple[Any, ...], dict[Variant, list[Curve]]] = {}
    for variant, curves in variants(rows, [*axes, SEED]).items():
        groups.setdefault(tuple(dict(variant.values)[axis] for axis in fixed), {})[variant] = curves
    made: list[Setting] = []
    for open_values, group in sorted(groups.items(), key=lambda item: str(item[0])):
        wanted = values | dict(zip(fixed, open_values, strict=True))
        base = Variant(tuple((axis, wanted[axis]) for axis in axes), PLAINLY)
        if base in group:
            name = ", ".join(f"{axis} {value}" for axis, value in zip(fixed, open_values, strict=True))
            varying = [axis for axis in values if len({dict(variant.values)[axis] for variant in group}) > 1]
            made.append(Setting(name, tuple(varying or values), base, group, contrasts(group, values, basis=basis)))
    return made


def verdicts(setting: Setting) -> list[str]:
    """Return one line per decided variant, the best first, and the number of undecided ones."""
    reference, lines = setting.reference.name(setting.axes), list[str]()
    decided = [contrast for contrast in setting.compared if contrast.verdict in ("better", "worse")]
    for contrast in sorted(decided, key=lambda contrast: -contrast.over_curve["conflict"].mean):
        conflict, aligned = contrast.over_curve["conflict"], contrast.over_curve["aligned"]
        lines.append(
            f"{contrast.variant.name(setting.axes)} is {contrast.verdict} than {reference}: "
            f"conflict {points(conflict, star=False)}, aligned {100 * aligned.mean:+.1f}, "
            f"p {corrected_p(conflict)}, {contrast.seeds} seeds"
        )
    tested = sum(contrast.seeds > 1 for contrast in setting.compared)
    if left := tested - len(decided):
        lines.append(f"not decided against {reference}: {left} of {tested} variants of several seeds")
    return lines


def ends_table(setting: Setting) -> Table:
    """Return a row per variant and accuracy: where training ended, and the difference to the reference there."""
    compared = {contrast.variant: contrast for contrast in setting.compared}
    keys = {variant: accuracies(curves) for variant, curves in setting.shown.items()}
    several = any("_" in key for of_variant in keys.values() for key in of_variant)  # datasets
    lines = []
    for variant, curves in setting.shown.items():
        contrast = compared.get(variant)
        for key in keys[variant]:
            subset, _, dataset = key.partition("_")
            tested = contrast is not None and contrast.seeds > 1
            change = contrast.after_training.get(key) if contrast is not None and tested else None
            accuracy = percent(over_seeds([curve.last[key] for curve in curves]).mean)
            apart = "" if change is None else points(change, star=False)
            of = [subset, dataset] if several else [subset]
            lines.append([variant.name(setting.axes), str(len(curves)), *of, accuracy, apart, corrected_p(change)])
    datasets = ["dataset"] if several else []
    return Table.of(["variant", "seeds", "subset", *datasets, "accuracy", "Δ at equal steps", "p"], lines)


def setting_table(setting: Setting) -> Table:
    """Return a row per variant: accuracies at its end, and differences at equal compute."""
    compared = {contrast.variant: contrast for contrast in setting.compared}
    lines = []
    for variant, curves in setting.shown.items():
        end = [percent(float(np.mean([curve.last[key] for curve in curves]))) for key in ("aligned", "conflict")]
        contrast = compared.get(variant)
        if contrast is None:
            verdict = "reference" if variant == setting.reference else "no common seed"
            cells = ["1.0", *end, "", "", "", "", verdict]
        else:
            aligned, conflict = contrast.over_curve["aligned"], contrast.over_curve["conflict"]
            at_end, tested = contrast.at_end["conflict"], contrast.seeds > 1
            cells = [f"{contrast.cost:.1f}", *end, f"{100 * aligned.mean:+.1f}", points(conflict, star=False)]
            cells.append(corrected_p(conflict if tested else None))
            cells += [f"{100 * at_end.mean:+.1f}, p {corrected_p(at_end if tested else None)}", contrast.verdict]
        lines.append([variant.name(setting.axes), str(len(curves)), *cells])
    columns = ["variant", "seeds", "cost", "aligned", "conflict", "Δaligned", "Δconflict", "p", "at end", "verdict"]
    return Table.of(columns, lines)

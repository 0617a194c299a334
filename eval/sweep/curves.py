"""Accuracy during training: the rows of the results file, curves over seeds, and variants compared with a reference.

A row of the probe has the value of each axis and these fields. `samples` and `step` are those trained so far.
`aligned` and `conflict` are shares of a subset's samples, `n` is its size; `conflict_DATASET` is that of a further
dataset of the probe. `seconds` and `cpu_seconds` are those of training so far; the latter depends little on other work
on the machine. `overrides` are those of the call, if any. The file also has a row for each scored point.

A variant is a combination of values of the axes, with a decoder. Runs are paired by seed: intervals and p-values are
those of a paired t-test over seeds (Student 1908), corrected for all variants of one setting (Holm 1979).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import ArrayLike

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.samples import DEBIASED, IMAGINED, PLAIN, PREFIX, PROBED
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import CHECKSUMS, load_yaml, read_results, with_checksums, write_whole
from d2e_sft.util.table import Table, percent
from eval.compare.figures import corrected_p, points
from eval.score.statistics import LEVEL, Difference, Interval, holm
from eval.sweep.spec import SEED

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
WITHOUT_CONTEXT = "without_context"  # the decoder of rows that were answered without it
ACCURACIES = ("aligned", "conflict")
OVER_CURVE, AT_END, AFTER_TRAINING = "over curve", "at end", "after training"
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
            decoder = {PLAIN: PLAIN, IMAGINED: WITHOUT_CONTEXT}.get(name, f"d2e:alpha={entry[PREFIX + 'alpha']:g}")
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
    wanted = {axis: typed(value) for axis, value in values.items()}
    return [row for row in rows if all(row.get(axis) == value for axis, value in wanted.items())]


def typed(name: str) -> Any:
    try:
        value = load_yaml(name)
    except (yaml.YAMLError, ValueError):
        return name
    return value if isinstance(value, int | float) and not isinstance(value, bool) else name


@dataclass(frozen=True)
class Setting:
    """Variants of training with one reference: they share the values of the axes that the reference leaves open.

    Attributes:
        name: `strength 0.95`; empty if the reference names all axes.
        reference: Name of the plainly decoded reference.
        rows: The probe's rows with the name of their `variant`, without those answered without the context.
        compared: Variant → its comparison with the reference, for those that have a seed in common with it.
    """

    name: str
    reference: str
    rows: DataFrame
    compared: dict[str, Contrast]

    @property
    def variants(self) -> dict[str, DataFrame]:
        return {str(name): own for name, own in self.rows.groupby("variant", sort=False)}


@dataclass(frozen=True)
class Contrast:
    """A variant compared with the reference, over the seeds that both have.

    Attributes:
        cost: Compute per step, as a multiple of the reference's.
        differences: By measure and accuracy. `over curve` is between the means over the curves up to the end of the
            shorter of the two runs, at equal compute; `at end` is there. `after training` is where both have ended, so
            at equal steps; it also has the accuracies of further datasets.
    """

    seeds: int
    cost: float
    differences: dict[tuple[str, str], Difference]

    @property
    def verdict(self) -> str:
        """Return `better`, `worse` (conflict accuracy over the curve, corrected p), `not decided` or `one seed`."""
        conflict = self.differences[OVER_CURVE, "conflict"]
        if self.seeds < 2:
            return "one seed"
        return "not decided" if not conflict.significant else "better" if conflict.mean > 0 else "worse"


def ends_of(rows: DataFrame) -> DataFrame:
    return rows.sort_values([SEED, "step"]).groupby(SEED).tail(1)


def accuracies(ends: DataFrame) -> list[str]:
    """Return the accuracies that all rows have: of both subsets, and of those of further datasets."""
    return [str(key) for key in ends if str(key).startswith(ACCURACIES) and ends[key].notna().all()]


def over_seeds(values: ArrayLike) -> Interval:
    """Return the mean over seeds with its t interval; for one seed the interval is the value."""
    change = paired(values)
    return Interval(change.mean, *((change.low, change.high) if np.size(values) > 1 else (change.mean, change.mean)))


def averaged(rows: DataFrame, key: str) -> list[tuple[int, Interval, int]]:
    """Return (step, mean over seeds, number of seeds) for each step."""
    return [(int(step), over_seeds(own[key]), len(own)) for step, own in rows.groupby("step")]


def paired(changes: ArrayLike) -> Difference:
    """Return the mean of paired differences with its t interval and p; for one pair the interval is infinite."""
    changes = np.asarray(changes, dtype=np.float64)
    mean = float(changes.mean())
    if changes.size < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    if np.ptp(changes) < 1e-9:  # the same for every seed, so no variance to test against: p of a sign-flip test
        return Difference(mean, mean, mean, 1.0 if abs(mean) < 1e-9 else 2.0 ** (1 - changes.size))
    from scipy.stats import ttest_1samp

    test = ttest_1samp(changes, 0)
    bounds = test.confidence_interval(LEVEL)
    return Difference(mean, float(bounds.low), float(bounds.high), float(test.pvalue))


def value_at(curve: DataFrame, key: str, seconds: float) -> float:
    """Return the value of `key` after `seconds` of processor time in training, interpolated linearly."""
    return float(np.interp(seconds, curve["cpu_seconds"].astype(float), curve[key].astype(float)))


def mean_until(curve: DataFrame, key: str, seconds: float) -> float:
    """Return the mean of `key` over the processor seconds from the first row to `seconds`."""
    x, y = (curve[name].to_numpy(float) for name in ("cpu_seconds", key))
    is_before = x < seconds
    x, y = np.append(x[is_before], seconds), np.append(y[is_before], value_at(curve, key, seconds))
    width = x[-1] - x[0]
    return float(np.trapezoid(y, x) / width) if width > 0 else float(y[0])


def settings(axes: Sequence[str], reference: Mapping[str, str], rows: Sequence[Row]) -> list[Setting]:
    """Return the settings whose reference was measured; `reference` names values of axes."""
    from pandas import DataFrame  # a dry run does without

    if not rows:
        return []
    wanted = {axis: typed(value) for axis, value in reference.items()}
    fixed = [axis for axis in axes if axis not in {SEED, *wanted}]
    frame = DataFrame(rows, dtype=object)
    groups = frame.groupby(fixed, sort=False, dropna=False) if fixed else [((), frame)]
    made = []
    for values, group in sorted(groups, key=lambda pair: [str(value) for value in pair[0]]):
        naming = [axis for axis in wanted if group[axis].nunique() > 1] or list(wanted)
        decoder = group["decoder"].map(lambda name: "" if name == PLAIN else f" ({name})")
        variant = group[naming].astype(str).agg(", ".join, axis=1) + decoder
        own = group.assign(variant=variant)
        is_reference = np.logical_and.reduce([own[axis] == value for axis, value in wanted.items()])
        base = own[is_reference & (own["decoder"] == PLAIN)]
        if len(base):
            name = ", ".join(f"{axis} {value}" for axis, value in zip(fixed, values, strict=True))
            shown, first = own[own["decoder"] != WITHOUT_CONTEXT], str(base["variant"].iloc[0])
            made.append(Setting(name, first, shown, _contrasts(shown, first)))
    return made


def _contrasts(rows: DataFrame, reference: str) -> dict[str, Contrast]:
    """Compare each variant with the reference; Holm's correction covers all variants of several seeds."""
    from pandas import DataFrame

    curves: dict[str, dict[Any, DataFrame]] = {}
    for (variant, seed), own in rows.groupby(["variant", SEED], sort=False):
        curves.setdefault(variant, {})[seed] = own.sort_values("step")
    bases, made = curves.pop(reference), dict[str, Contrast]()
    for variant, by_seed in curves.items():
        seeds = sorted(bases.keys() & by_seed.keys())
        if not seeds:
            continue
        pairs = [(bases[seed], by_seed[seed]) for seed in seeds]
        limits = [min(base["cpu_seconds"].iloc[-1], own["cpu_seconds"].iloc[-1]) for base, own in pairs]
        differences = {}
        for measure, value in ((OVER_CURVE, mean_until), (AT_END, value_at)):
            for key in ACCURACIES:
                ends = zip(pairs, limits, strict=True)
                changes = [value(own, key, limit) - value(base, key, limit) for (base, own), limit in ends]
                differences[measure, key] = paired(changes)
        first, second = (DataFrame([pair[side].iloc[-1] for pair in pairs]) for side in (0, 1))
        for key in sorted(set(accuracies(first)) & set(accuracies(second))):
            differences[AFTER_TRAINING, key] = paired(second[key].to_numpy() - first[key].to_numpy())
        costs = [
            (own["cpu_seconds"] / own["step"]) / (base["cpu_seconds"] / base["step"])
            for (_, base), (_, own) in zip(first.iterrows(), second.iterrows(), strict=True)
            if base["step"] and own["step"] and base["cpu_seconds"]
        ]
        cost = float(np.median(costs)) if costs else math.nan
        made[variant] = Contrast(len(seeds), cost, differences)
    tested = [contrast.differences for contrast in made.values() if contrast.seeds > 1]
    for measured in dict.fromkeys(measured for differences in tested for measured in differences):
        having = [differences for differences in tested if measured in differences]
        for differences, p in zip(having, holm([own[measured].p_value for own in having]), strict=True):
            differences[measured] = replace(differences[measured], adjusted_p=float(p))
    return made


def verdicts(setting: Setting) -> list[str]:
    """Return one line per decided variant, the best first, and the number of undecided ones."""
    tested = {name: contrast for name, contrast in setting.compared.items() if contrast.seeds > 1}
    decided = [name for name, contrast in tested.items() if contrast.verdict != "not decided"]
    lines = []
    for name in sorted(decided, key=lambda name: -tested[name].differences[OVER_CURVE, "conflict"].mean):
        conflict, aligned = (tested[name].differences[OVER_CURVE, key] for key in ("conflict", "aligned"))
        lines.append(
            f"{name} is {tested[name].verdict} than {setting.reference}: conflict {points(conflict, star=False)}, "
            f"aligned {100 * aligned.mean:+.1f}, p {corrected_p(conflict)}, {tested[name].seeds} seeds"
        )
    left = len(tested) - len(decided)
    if left:
        lines.append(f"not decided against {setting.reference}: {left} of {len(tested)} variants of several seeds")
    return lines


def setting_table(setting: Setting) -> Table:
    """Return a row per variant: accuracies at its end, and differences at equal compute."""
    lines = []
    for name, own in setting.variants.items():
        ends, contrast = ends_of(own), setting.compared.get(name)
        shown = [percent(float(ends[key].mean())) for key in ACCURACIES]
        if contrast is None:
            rest = ["1.0", *shown, "", "", "", "", "reference" if name == setting.reference else "no common seed"]
        else:
            aligned, conflict = (contrast.differences[OVER_CURVE, key] for key in ACCURACIES)
            at_end, is_tested = contrast.differences[AT_END, "conflict"], contrast.seeds > 1
            rest = [f"{contrast.cost:.1f}", *shown, f"{100 * aligned.mean:+.1f}", points(conflict, star=False)]
            rest.append(corrected_p(conflict if is_tested else None))
            rest += [f"{100 * at_end.mean:+.1f}, p {corrected_p(at_end if is_tested else None)}", contrast.verdict]
        lines.append([name, str(len(ends)), *rest])
    columns = ["variant", "seeds", "cost", "aligned", "conflict", "Δaligned", "Δconflict", "p", "at end", "verdict"]
    return Table.of(columns, lines)


def ends_table(setting: Setting) -> Table:
    """Return a row per variant and accuracy: where training ended, and the difference to the reference there."""
    ends = {name: ends_of(own) for name, own in setting.variants.items()}
    keys = {name: accuracies(own) for name, own in ends.items()}
    has_datasets = any("_" in key for own in keys.values() for key in own)
    lines = []
    for name, own in ends.items():
        contrast = setting.compared.get(name)
        for key in keys[name]:
            subset, _, dataset = key.partition("_")
            is_tested = contrast is not None and contrast.seeds > 1
            change = contrast.differences.get((AFTER_TRAINING, key)) if contrast is not None and is_tested else None
            of = [subset, dataset] if has_datasets else [subset]
            apart = "" if change is None else points(change, star=False)
            lines.append([name, str(len(own)), *of, percent(over_seeds(own[key]).mean), apart, corrected_p(change)])
    columns = ["variant", "seeds", "subset", *(["dataset"] if has_datasets else []), "accuracy"]
    return Table.of([*columns, "Δ at equal steps", "p"], lines)

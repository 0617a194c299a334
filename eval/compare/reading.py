"""When a training starts to use the context: its compute until most conflict rows are right, and where it ends.

A curve is the accuracy of one training, answered in one way, over its evaluations. It *reads* at a threshold from the
first evaluation that reaches it, in the first fifth of the curve whose mean reaches it. A fifth, since accuracies of
small subsets jump, and many models forget again what they had learnt: asking for all later evaluations would call them
models that never read. Its *plateau* is the mean of its last fifth; a training that reads, and whose plateau is below
the threshold, has *lost* it again.

Seeds that never read are censored at their end: shares are Kaplan and Meier's (1958), compared by the log-rank test
(Mantel 1966). Plateaus are compared by a paired t-test over seeds. P-values are corrected for the variants of a
setting (Holm 1979). A variant is a combination of values of the axes, with a decoder.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from d2e_sft.config.recipe import Recipe, recipe_of
from d2e_sft.train.run_folder import TRAINER_STATE
from d2e_sft.train.samples import PLAIN
from d2e_sft.util.table import NONE, Table, percent
from eval.compare.figures import corrected_p, points
from eval.compare.runs import SEED, Row, RunResult, has_axes, probe_rows, training_log, typed
from eval.run.journal import WITHOUT_CONTEXT
from eval.score.statistics import LEVEL, Difference, Interval, holm

if TYPE_CHECKING:
    from pandas import DataFrame

ACCURACIES = ("aligned", "conflict")
THRESHOLDS = (0.5, 0.7)
_SAME = 1e-9  # largest range of values that count as equal
_ROUNDED = 0.5e-4 + 1e-9  # tolerance for a mean of shares, of which rows have four places
_FEW = 300  # permutations, as of five seeds against five
VERDICT = 0.7  # the threshold of verdicts and of the picture
_AT = f"{100 * VERDICT:.0f} %"
COMPUTE = {"cpu_seconds": (1.0, "CPU s"), "tokens": (1e6, "M tokens")}  # column → unit
_ONSETS = (
    "Compute until a training reads: until the first evaluation at the threshold, in the first fifth of the curve "
    "whose mean is there. Median over seeds with its 95 % interval; p of a log-rank test against the reference, "
    "corrected for the variants (Holm). Lost: seeds that read, and whose plateau is below the threshold."
)
_PLATEAUS = (
    "Plateau: the mean of the last fifth of a curve. Cost: compute of a step, a multiple of the reference's. Δ: the "
    "difference to the reference, in percentage points with its 95 % interval; p of a paired t-test over seeds, "
    "corrected (Holm)."
)


def fifth(curve: DataFrame) -> int:
    """Return the number of evaluations in a fifth of a curve, at least one."""
    return max(1, round(len(curve) / 5))


def plateau(curve: DataFrame, key: str = "conflict") -> float:
    """Return the mean of the last fifth of a curve, which is in the order of its steps."""
    return float(curve[key].iloc[-fifth(curve) :].astype(float).mean())


def reads_at(curve: DataFrame, threshold: float) -> int | None:
    """Return the place of the evaluation from which a curve reads; None if it never does."""
    values, width = curve["conflict"].to_numpy(float), fifth(curve)
    means = np.convolve(values, np.ones(width) / width, "valid")
    enough = threshold - _ROUNDED
    if not (means >= enough).any():
        return None
    start = int(np.argmax(means >= enough))
    return start + int(np.argmax(values[start:] >= enough))


def a_step(by_seed: Mapping[Any, DataFrame], column: str = "cpu_seconds") -> float:
    """Return the compute of a training step, the median over seeds; 0 without a step."""
    ends = [curve.iloc[-1] for curve in by_seed.values()]
    return float(np.median([end[column] / end["step"] for end in ends if end["step"]] or [0.0]))


@dataclass(frozen=True)
class Onset:
    """The compute until the seeds of a variant read, in the unit of a column of the rows.

    Compute is steps times that of a step. So seeds have one clock, and a seed that ends is not taken out before an
    evaluation of another one at the same step.

    Attributes:
        reached: Compute of the seeds that read.
        censored: Compute at the end of those that never do.
        lost: How many read, and end below the threshold.
    """

    reached: list[float]
    censored: list[float]
    lost: int

    @classmethod
    def of(cls, by_seed: Mapping[Any, DataFrame], threshold: float, rate: float) -> Onset:
        pairs = [(curve, reads_at(curve, threshold)) for curve in by_seed.values()]
        return cls(
            [rate * int(curve["step"].iloc[i]) for curve, i in pairs if i is not None],
            [rate * int(curve["step"].iloc[-1]) for curve, i in pairs if i is None],
            sum(i is not None and plateau(curve) < threshold - _ROUNDED for curve, i in pairs),
        )

    @property
    def seeds(self) -> int:
        return len(self.reached) + len(self.censored)

    def at_risk(self, compute: float) -> int:
        """Return how many seeds are still in training and do not read yet, just before some compute."""
        return sum(value >= compute for value in (*self.reached, *self.censored))

    def estimate(self) -> Any:
        """Return Kaplan and Meier's estimate, `cdf` of the share that reads, as SciPy has it."""
        from scipy.stats import CensoredData, ecdf

        return ecdf(CensoredData(uncensored=self.reached, right=self.censored))

    def median(self) -> Interval:
        """Return the median with its interval (Brookmeyer and Crowley 1982); infinite where half never read."""
        survival = self.estimate().sf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the interval is undefined where all or none read
            bounds = survival.confidence_interval(LEVEL, method="log-log")
        left, low, high = (bound.probabilities for bound in (survival, bounds.low, bounds.high))
        low, high = np.where(np.isnan(low), left, low), np.where(np.isnan(high), 1.0, high)

        def half(shares: Any) -> float:
            return float(min(survival.quantiles[shares <= 0.5], default=math.inf))

        return Interval(half(left), half(low), half(high))


def log_rank(onset: Onset, base: Onset) -> Difference | None:
    """Compare two variants, each of two seeds or more; `mean` is above 0 if `onset` is sooner. None if no seed reads.

    The p-value of few seeds is that of all permutations: by the normal approximation three seeds could be decided.
    """
    if min(onset.seeds, base.seeds) < 2 or not (onset.reached or base.reached):
        return None
    from scipy.stats import CensoredData, logrank, permutation_test

    times = np.array([*onset.reached, *onset.censored, *base.reached, *base.censored])
    reads = np.array([kind for o in (onset, base) for kind in [True] * len(o.reached) + [False] * len(o.censored)])

    def test(*groups: Any) -> Any:
        return logrank(*(CensoredData(times[at][reads[at]], right=times[at][~reads[at]]) for at in groups))

    def statistic(*groups: Any) -> float:
        return float(np.nan_to_num(test(*groups).statistic))  # NaN where all read at the same compute

    parts = np.split(np.arange(len(times)), [onset.seeds])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        p = np.nan_to_num(test(*parts).pvalue, nan=1.0)
        if math.comb(len(times), onset.seeds) <= _FEW:
            p = permutation_test(parts, statistic, n_resamples=np.inf, vectorized=False).pvalue
        return Difference(statistic(*parts), -math.inf, math.inf, float(p))


@dataclass(frozen=True)
class Contrast:
    """A variant compared with the reference.

    Attributes:
        onsets: Threshold → log-rank test.
        plateaus: Accuracy, also of further datasets → difference of the plateaus, paired by seed; of several pairs.
    """

    onsets: dict[float, Difference]
    plateaus: dict[str, Difference]

    @property
    def verdict(self) -> list[str]:
        """Return what is decided, such as `reads 70 % sooner` and `ends higher` (conflict accuracy)."""
        reads, ends = self.onsets.get(VERDICT), self.plateaus.get("conflict")
        words = [f"reads {_AT} {'sooner' if reads.mean > 0 else 'later'}"] if reads and reads.significant else []
        return words + ([f"ends {'higher' if ends.mean > 0 else 'lower'}"] if ends and ends.significant else [])


@dataclass(frozen=True)
class Setting:
    """Variants of training with one reference: they share the values of the axes that the reference leaves open.

    Attributes:
        name: `strength 0.95`; empty if the reference names all axes.
        reference: Name of the plainly decoded reference.
        rows: The probe's rows with the name of their `variant`, without those answered without the context.
        curves: Variant → seed → its rows in the order of steps.
        compared: Variant → its comparison with the reference, for those that have a seed in common with it.
    """

    name: str
    reference: str
    rows: DataFrame
    curves: dict[str, dict[Any, DataFrame]]
    compared: dict[str, Contrast]

    def onset(self, variant: str, threshold: float, column: str = "cpu_seconds") -> Onset:
        curves, base = self.curves[variant], self.curves[self.reference]
        return Onset.of(curves, threshold, _clock(curves, base) if column == "cpu_seconds" else a_step(curves, column))

    def cost(self, variant: str) -> float:
        """Return the compute of a step, as a multiple of the reference's."""
        cost, base = (a_step(self.curves[name]) for name in (variant, self.reference))
        return cost / base if cost and base else math.nan

    def counts(self, variant: str, column: str) -> bool:
        """Whether all rows of a variant have this measure of compute."""
        return all(column in curve and bool(curve[column].notna().all()) for curve in self.curves[variant].values())

    def plateaus(self, variant: str) -> dict[str, list[float]]:
        """Return the plateau of each seed, by accuracy."""
        curves = self.curves[variant].values()
        return {key: [plateau(curve, key) for curve in curves] for key in accuracies(curves)}


def settings(axes: Sequence[str], reference: Mapping[str, str], rows: Sequence[Row]) -> list[Setting]:
    """Return the settings whose reference was measured; `reference` names values of axes. Other axes' rows are not."""
    from pandas import DataFrame  # a dry run does without

    rows = [row for row in rows if has_axes(row, axes)]
    if not rows:
        return []
    of_reference = {axis: [value, typed(value)] for axis, value in reference.items()}  # a run's name stays a text
    fixed = [axis for axis in axes if axis not in {SEED, *of_reference}]
    frame = DataFrame(rows, dtype=object)
    groups = frame.groupby(fixed, sort=False, dropna=False) if fixed else [((), frame)]
    result = []
    for values, group in sorted(groups, key=lambda pair: [str(value) for value in pair[0]]):
        naming = [axis for axis in of_reference if group[axis].nunique() > 1] or list(of_reference)
        decoder = group["decoder"].map(lambda name: "" if name == PLAIN else f" ({name})")
        labelled = group.assign(variant=group[naming].astype(str).agg(", ".join, axis=1) + decoder)
        is_reference = np.logical_and.reduce([labelled[axis].isin(values) for axis, values in of_reference.items()])
        base = labelled[is_reference & (labelled["decoder"] == PLAIN)]
        if len(base):
            name = ", ".join(f"{axis} {value}" for axis, value in zip(fixed, values, strict=True))
            shown, first = labelled[labelled["decoder"] != WITHOUT_CONTEXT], str(base["variant"].iloc[0])
            curves: dict[str, dict[Any, DataFrame]] = {}
            for (variant, seed), curve in shown.groupby(["variant", SEED], sort=False):
                curves.setdefault(str(variant), {})[seed] = curve.sort_values("step")
            result.append(Setting(name, first, shown, curves, _contrasts(curves, first)))
    return result


def way_of(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe without the seed and the files, which the seeds of one way of training do not share."""
    files: Any = {"eval": True, "data": {"train", "dev", "probe"}, "train": {"output_dir", "seed"}}
    return recipe.model_dump(exclude=files)


def probed(runs: Sequence[RunResult]) -> Setting | None:
    """Return the runs with a probe as one setting, with the first of them as reference; None without any.

    Runs compared over seeds are a variant by their label; others are one if they differ in the seed alone.
    """
    rows, names, homes, cells = list[Row](), dict[str, str](), set[Path](), set[tuple[str, int]]()
    for run in runs:
        if run.home in homes or not (run.home / TRAINER_STATE).is_file():  # another checkpoint has the same log
            continue
        if (recipe := recipe_of(str(run.home))) is None:
            continue
        homes.add(run.home)
        way = run.label if run.seed is not None else json.dumps([way_of(recipe), recipe.data.train], sort_keys=True)
        name, seed = names.setdefault(way, run.label), recipe.train.seed
        name = run.label if (name, seed) in cells else name  # the same training again
        cells.add((name, seed))
        log = run.log if run.home == run.path else training_log(run.home)
        rows += [{**row, "run": name, SEED: seed} for row in probe_rows(log, recipe, {}, {})]
    results = settings(["run", SEED], {"run": str(rows[0]["run"])}, rows) if rows else []
    return results[0] if results else None


def accuracies(curves: Any) -> list[str]:
    """Return the accuracies that all rows have: of both subsets, and of those of further datasets."""
    shared = set.intersection(*({str(key) for key in curve if curve[key].notna().all()} for curve in curves))
    return sorted(key for key in shared if key.startswith(ACCURACIES))


def over_seeds(values: ArrayLike, least: float = 0.0) -> Interval:
    """Return the mean over seeds with its t interval, of shares from `least` to 1; equal values have no width."""
    if np.ptp(values) < _SAME:
        mean = float(np.mean(np.asarray(values, dtype=np.float64)))
        return Interval(mean, mean, mean)
    change = paired(values)
    return Interval(change.mean, max(change.low, least), change.high)


def averaged(rows: DataFrame, key: str) -> list[tuple[int, Interval, int]]:
    """Return (step, mean over seeds, number of seeds) for each step."""
    return [(int(step), over_seeds(group[key]), len(group)) for step, group in rows.groupby("step")]


def paired(changes: ArrayLike, rows: float = 0) -> Difference:
    """Return the mean of paired differences with its t interval and p; for one pair the interval is infinite.

    Differences of shares end at ±1, so the interval of a few pairs that lie between these bounds does, too. Equal
    differences have no variance to test: p is that of a sign-flip test. Their interval is that of `rows` of which none
    differs otherwise (3 / rows, the rule of three); without rows a few pairs leave it open.
    """
    changes = np.asarray(changes, dtype=np.float64)
    mean = float(changes.mean())
    if changes.size < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    most = 1.0 if np.abs(changes).max() <= 1 else math.inf
    if np.ptp(changes) < _SAME:
        flips = 2.0 ** (1 - changes.size)
        half = 3 / rows if rows else 0.0 if flips < 1 - LEVEL else math.inf
        p = 1.0 if abs(mean) < _SAME else flips
        return Difference(mean, max(mean - half, -most), min(mean + half, most), p)
    from scipy.stats import ttest_1samp

    test = ttest_1samp(changes, 0)
    bounds = test.confidence_interval(LEVEL)
    return Difference(mean, max(float(bounds.low), -most), min(float(bounds.high), most), float(test.pvalue))


def _clock(curves: Mapping[Any, DataFrame], base: Mapping[Any, DataFrame]) -> float:
    """Return the CPU seconds of a step, as the reference's times the cost to a tenth: the rest is the machine's noise.

    Otherwise variants of equal cost would end a little apart, and what one reads in its last steps compare with none.
    """
    rate = a_step(base)
    return rate * round(a_step(curves) / rate, 1) if rate else a_step(curves)


def _contrasts(curves: Mapping[str, Mapping[Any, DataFrame]], reference: str) -> dict[str, Contrast]:
    """Compare each variant with the reference; Holm's correction covers all variants of several seeds."""
    bases, result = curves[reference], dict[str, Contrast]()
    for variant, by_seed in curves.items():
        pairs = [(bases[seed], by_seed[seed]) for seed in sorted(bases.keys() & by_seed.keys())]
        if variant == reference or not pairs:
            continue
        sides = [(by_seed, _clock(by_seed, bases)), (bases, _clock(bases, bases))]
        tests = {at: log_rank(*(Onset.of(side, at, rate) for side, rate in sides)) for at in THRESHOLDS}
        keys = accuracies([curve for pair in pairs for curve in pair]) if len(pairs) > 1 else []
        plateaus = {key: paired([plateau(curve, key) - plateau(base, key) for base, curve in pairs]) for key in keys}
        result[variant] = Contrast({at: test for at, test in tests.items() if test is not None}, plateaus)
    for tested in ([c.onsets for c in result.values()], [c.plateaus for c in result.values()]):
        groups: list[dict[Any, Difference]] = list(tested)
        for key in dict.fromkeys(key for by_key in groups for key in by_key):
            having = [by_key for by_key in groups if key in by_key]
            for by_key, p in zip(having, holm([by_key[key].p_value for by_key in having]), strict=True):
                by_key[key] = replace(by_key[key], adjusted_p=float(p))
    return result


def verdicts(setting: Setting) -> list[str]:
    """Return a line about the reference, one for each decided variant, and the number of undecided ones."""

    def onset(variant: str) -> str:
        result = setting.onset(variant, VERDICT)
        lost = f" ({result.lost} lost it again)" if result.lost else ""
        when = f"median {_compute(result.median(), 1.0)} CPU seconds"
        return f"{len(result.reached)} of {result.seeds} seeds read {_AT} of conflict rows{lost}, {when}"

    first, compared = setting.reference, {name: c for name, c in setting.compared.items() if c.plateaus}
    ends = percent(float(np.mean(setting.plateaus(first)["conflict"])))
    lines = [f"{first}: {onset(first)}; plateau {ends} %"]
    decided = {name: c for name, c in compared.items() if c.verdict}
    for name, c in sorted(decided.items(), key=lambda item: -item[1].plateaus["conflict"].mean):
        change, sooner = c.plateaus["conflict"], corrected_p(c.onsets.get(VERDICT))
        apart = f"plateau {points(change, star=False)}, p {corrected_p(change)}"
        lines.append(f"{name} {' and '.join(c.verdict)} than {first}: {onset(name)}, p {sooner}; {apart}")
    if left := len(compared) - len(decided):
        lines.append(f"not decided against {first}: {left} of {len(compared)} variants of several seeds")
    return lines


def onset_table(setting: Setting) -> Table:
    """Return a row per variant and threshold: how many seeds read, after how much compute, and how many lost it."""
    names = list(setting.curves)
    units = {column: unit for column, unit in COMPUTE.items() if any(setting.counts(name, column) for name in names)}
    lines = []
    for name in names:
        contrast = setting.compared.get(name)
        for at in THRESHOLDS:
            onset = setting.onset(name, at)
            medians = [
                _compute(setting.onset(name, at, column).median(), unit) if setting.counts(name, column) else NONE
                for column, (unit, _) in units.items()
            ]
            p = corrected_p(None if contrast is None else contrast.onsets.get(at))
            lines.append([name, percent(at), f"{len(onset.reached)} of {onset.seeds}", str(onset.lost), *medians, p])
    until = [f"{unit} until" for _, unit in units.values()]
    return Table.of(["variant", "threshold", "seeds that read", "lost", *until, "p"], lines, _ONSETS, keys=2)


def plateau_table(setting: Setting) -> Table:
    """Return a row per variant and accuracy: the cost of a step, the plateau, and its difference to the reference."""
    plateaus = {name: setting.plateaus(name) for name in setting.curves}
    has_datasets = any("_" in key for by_key in plateaus.values() for key in by_key)
    lines = []
    for name, by_key in plateaus.items():
        contrast, cost = setting.compared.get(name), setting.cost(name)
        for key, values in by_key.items():
            subset, _, dataset = key.partition("_")
            change = None if contrast is None else contrast.plateaus.get(key)
            key_cells = [name, subset, *[dataset] * has_datasets]
            shown = [str(len(values)), NONE if math.isnan(cost) else f"{cost:.1f}", percent(float(np.mean(values)))]
            lines.append([*key_cells, *shown, points(change, star=False), corrected_p(change)])
    keys = ["variant", "subset", *["dataset"] * has_datasets]
    return Table.of([*keys, "seeds", "cost", "plateau", "Δ", "p"], lines, _PLATEAUS, keys=len(keys))


def _compute(median: Interval, unit: float) -> str:
    """`41 [32, –]`: a median with its interval; a dash for what no half of the seeds reached."""
    mean, low, high = (NONE if math.isinf(x) else f"{x / unit:.3g}" for x in (median.mean, median.low, median.high))
    return mean if mean == low == high == NONE else f"{mean} [{low}, {high}]"

"""A sweep as one call of `d2e sweep` asks for it: the file with the words of the command line."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.config.lookup import require_recipe
from d2e_sft.util.errors import UserError, did_you_mean
from eval.sweep.parts import OUTPUT, Value
from eval.sweep.points import EVALUATION, Point, data_folder, join_equal, make_points
from eval.sweep.spec import OWN_DATA, RUN, SweepSpec


@dataclass(frozen=True)
class Sweep:
    """A planned sweep: axis → names of its values, the points that this call chose, and the overrides it asked for."""

    spec: SweepSpec
    out: Path
    axes: dict[str, list[str]]
    points: list[Point]
    chosen: frozenset[str]
    asked: dict[str, str]

    @property
    def bench(self) -> tuple[str, str] | None:
        """Return `--bench …` or `--suite …` for `d2e eval`; None if the sweep is only probed."""
        if self.spec.bench is not None:
            return ("--bench", self.spec.bench)
        return None if self.spec.suite is None else ("--suite", self.spec.suite)

    def bench_of(self, point: Point) -> tuple[str, str] | None:
        """Return the benchmark of a point: that of its evaluation, its own data's test rows, or the sweep's."""
        if point.evaluation.suite is not None:
            return ("--suite", point.evaluation.suite)
        return ("--bench", str(data_folder(self.out, point.build))) if self.spec.bench == OWN_DATA else self.bench

    @property
    def suites(self) -> list[str]:
        """Return the suites that points are scored on."""
        benches = [self.bench_of(point) for point in self.work]
        return list(dict.fromkeys(bench[1] for bench in benches if bench is not None and bench[0] == "--suite"))

    @property
    def results(self) -> Path:
        return Path(self.spec.results or self.out / "results.json")

    @property
    def work(self) -> list[Point]:
        """Return the chosen points, without those that equal an earlier one."""
        wanted = {point.scored_in for point in self.points if point.name in self.chosen}
        return [point for point in self.points if point.name in wanted]

    @property
    def trainings(self) -> list[Point]:
        """Return the points whose training the chosen points need."""
        needed = {point.trained_in for point in self.work}
        return [point for point in self.points if point.train and point.name in needed]

    def axes_of(self, point: Point) -> dict[str, str]:
        """Return a point's values of the axes that are trained, without its evaluation."""
        return {axis: point.values[axis] for axis in self.spec.axes}

    def varying(self) -> list[str]:
        """Return the axes with several values; all of them if none has."""
        return [axis for axis, values in self.axes.items() if len(values) > 1] or list(self.axes)


def plan_sweep(spec: SweepSpec, words: Sequence[str], out: Path | None, stem: str) -> Sweep:
    """Make the points of a sweep.

    Args:
        words: `NAME` chooses a run or point, `AXIS=VALUE,…` values of an axis; `section.key=VALUE` overrides all
            recipes, and with several values adds an axis.
        stem: of the sweep's folder, where neither `out` nor the file names one.

    Raises:
        UserError: a word or a reference fits nothing, or a recipe does not load.
    """
    recipe = require_recipe(spec.recipe).name  # the same for a relative path, a full one and a bundled name
    folder = out or Path(spec.out or f"runs/sweep-{stem}")
    axes, asked, only, names = dict(spec.axes), dict[str, str](), dict[str, list[str]](), list[str]()
    for word in words:
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            names.append(word)
        elif key == OUTPUT:
            raise UserError(f"{word!r}: every training of a sweep has its own folder", "name the sweep's with --out")
        elif key in spec.axes or "." not in key:
            only[key] = split_values(word, text)
            for value in only[key]:
                spec.check_value(key, value)
        elif key in asked or key in axes:
            raise UserError(f"{word!r}: the key {key!r} is given twice", "put all values into one list")
        elif len(values := split_values(word, text)) > 1:
            axes[key] = {value: Value.model_validate({key: value}) for value in values}
        else:
            asked[key] = values[0]
    if not axes:
        raise UserError("a sweep without an axis; expected section.key=value,value, for example d2e.alpha=0.1,0.5")
    for axis, own in axes.items():
        if axis.startswith("eval.") and axis != "eval.alpha" and len(own) > 1:
            raise UserError(
                f"{axis}={','.join(own)}: changes how a model is scored, not the model; expected one value",
                remedy="give one value for all points, or score the trained points again with d2e eval",
            )
    spec = spec.model_copy(update={"recipe": recipe, "axes": axes})
    points = join_equal(make_points(spec, folder, asked))
    shown = {axis: list(values) for axis, values in axes.items()}
    suffixes = list(dict.fromkeys(point.values[EVALUATION] for point in points))
    shown |= {EVALUATION: suffixes} if len(suffixes) > 1 else {}
    spec = _named_points(spec, points)
    _check_names(spec, points, names)
    chosen = {
        point.name
        for point in points
        if all(point.values[axis] in values for axis, values in only.items())
        and (not names or {point.name, point.values.get(RUN)} & set(names))
    }
    return Sweep(spec, folder, shown, points, frozenset(chosen), asked)


def _named_points(spec: SweepSpec, points: Sequence[Point]) -> SweepSpec:
    """Return the file with the points of its tables spelled out; UserError if a name fits none."""
    suffixes = {point.name: point.suffix for point in points}
    known = list(suffixes)

    def named(table: str, wanted: Sequence[str]) -> list[str]:
        found = dict[str, None]()
        for name in wanted:
            # `sft,*` stands for the default evaluation alone, `sft,*-plain` for the one with that suffix.
            suffix = max((own for own in suffixes.values() if name.endswith(own)), key=len)
            fitting = [one for one in fnmatch.filter(known, name) if suffixes[one] == suffix]
            fitting = [name] if name in known else fitting
            if not fitting:
                raise UserError(f"{table}: no point {name!r}.{did_you_mean(name, sorted(known))}")
            found |= dict.fromkeys(fitting)
        return list(found)

    def with_points(tables: Any) -> Any:
        return {name: own.model_copy(update={"points": named(name, own.points)}) for name, own in tables.items()}

    comparisons = {name: named(name, own) for name, own in spec.comparisons.items()}
    tables = {"paper_tables": with_points(spec.paper_tables), "reports": with_points(spec.reports)}
    return spec.model_copy(update={"comparisons": comparisons, **tables})


def _check_names(spec: SweepSpec, points: Sequence[Point], names: Sequence[str]) -> None:
    known = {point.name for point in points}
    runs = spec.axes.get(RUN, {})
    for name in names:
        if name not in known | runs.keys():
            raise UserError(
                f"{name!r}: neither a run of the sweep nor an override.{did_you_mean(name, [*runs, *known])}",
                remedy=f"expected section.key=value, AXIS=VALUE{', or some of ' if runs else ''}{', '.join(runs)}",
            )


def split_values(word: str, text: str) -> list[str]:
    """Split values at commas outside brackets and quotes, like YAML; UserError if one is empty or not closed."""
    try:
        nodes: list[yaml.Node] = getattr(yaml.compose(f"[{text}]", Loader=yaml.SafeLoader), "value", [])
    except yaml.YAMLError:
        nodes = []
    if not nodes or text.rstrip().endswith(","):
        raise UserError(f"{word!r}: expected YAML values separated by single commas", "write null for no value")
    return [text[node.start_mark.index - 1 : node.end_mark.index - 1] for node in nodes]

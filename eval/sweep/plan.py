"""The points of a sweep: combinations of its axes' values, each scored once or in several ways of decoding.

Points that the method makes equal, such as any α without debiasing, share one training or one score.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.lookup import require_recipe
from d2e_sft.config.recipe import Recipe, flat, load_recipe
from d2e_sft.util.errors import UserError, did_you_mean
from eval.score.measures import digest
from eval.sweep.spec import OUTPUT, OWN_DATA, RUN, Evaluation, SweepSpec, Value, as_text, split_words

EVALUATION = "evaluation"  # the axis of what differs only in decoding
_LONGEST_NAME, _LONGEST_DATA = 120, 200
# These change neither a model nor its scores.
FREE_TO_CHANGE = (OUTPUT, "train.save_", "train.logging_steps", "train.report_to")


@dataclass(frozen=True)
class Point:
    """One combination of values with one evaluation.

    Attributes:
        name: Name of the point's folder; depends only on its values.
        suffix: End of the name that stands for the evaluation; may be empty.
        overrides: Overrides for `d2e train`, without the output folder; `recipe` has them.
        train: False to score the recipe's model without training.
        build: Arguments of `d2e data build` for its data; empty if the recipe names the data.
        eval_args, errors: Arguments of `d2e eval`, after the sweep's, and of `d2e errors`; without, none are sorted.
        trained_in, scored_in: Names of the first points with the same training, and with the same decoding too.
    """

    name: str
    suffix: str
    values: dict[str, str]
    overrides: list[str]
    recipe: Recipe
    evaluation: Evaluation
    train: bool = True
    build: tuple[str, ...] = ()
    eval_args: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    trained_in: str = ""
    scored_in: str = ""

    @property
    def decoding(self) -> DecodingConfig:
        return self.evaluation.decoding(self.recipe.decoding)

    def training(self) -> str:
        """Return what decides the trained model: the recipe without evaluation and ineffective d2e options."""
        if not self.train:
            return self.recipe.model.model_dump_json()
        content = self.recipe.model_dump(exclude={"eval": True, "d2e": True, "train": {"output_dir"}})
        return json.dumps(content | {"d2e": self.recipe.d2e.of_training()}, sort_keys=True)

    def digest(self) -> str:
        """Return a digest of what decides the training and its probe, which is the same in another folder.

        Keys at their defaults are left out, so that a version with further keys reads the same.
        """
        data = self.recipe.data
        without: Any = {"eval": True, "data": {"train", "dev", "probe"}}
        recipe = self.recipe.model_dump(exclude=without, exclude_defaults=True)
        kept = {key: value for key, value in flat(recipe) if not key.startswith(FREE_TO_CHANGE)}
        return digest([kept, [Path(file or "").parts[-2:] for file in (data.train, data.dev, data.probe)]])

    def scoring(self) -> str:
        settings = self.recipe.eval.model_dump() | self.evaluation.model_dump() | {"decoder": None}
        return json.dumps(settings | self.decoding.record() | {"words": [self.eval_args, self.errors]}, sort_keys=True)


@dataclass(frozen=True)
class Sweep:
    """A planned sweep: axis → names of its values, the points that this call chose, and the overrides it asked for.

    `name` is that of its file, or of the recipe.
    """

    name: str
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

    @property
    def scored_on(self) -> str:
        """The benchmark in a sentence."""
        own = "each build's own test rows"
        return "" if self.bench is None else own if self.spec.bench == OWN_DATA else self.bench[1]

    def bench_of(self, point: Point) -> tuple[str, str] | None:
        """Return the benchmark of a point: that of its evaluation, its own data's test rows, or the sweep's."""
        if point.evaluation.suite is not None:
            return ("--suite", point.evaluation.suite)
        return ("--bench", str(self.data_of(point))) if self.spec.bench == OWN_DATA else self.bench

    def data_of(self, point: Point) -> Path:
        return data_folder(self.out, point.build)

    @property
    def results(self) -> Path:
        return Path(self.spec.results or self.out / "results.json")

    @property
    def work(self) -> list[Point]:
        """Return the chosen points, without those that equal an earlier one."""
        folders = {point.scored_in for point in self.points if point.name in self.chosen}
        return [point for point in self.points if point.name in folders]

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
    """Make the points of a sweep; UserError if a word or a reference fits nothing, or a recipe does not load.

    Args:
        words: `NAME` chooses a run or point, `AXIS=VALUE,…` values of an axis; `section.key=VALUE` overrides all
            recipes, and with several values adds an axis.
        stem: the sweep's name; also of its folder, where neither `out` nor the file names one.
    """
    recipe = require_recipe(spec.recipe).name  # the same for a relative path, a full one and a bundled name
    folder = out or Path(spec.out or f"runs/sweep-{stem}")
    axes, overrides, only, names = dict(spec.axes), dict[str, str](), dict[str, list[str]](), list[str]()
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
        elif key in overrides or key in axes:
            raise UserError(f"{word!r}: the key {key!r} is given twice", "put all values into one list")
        elif len(values := split_values(word, text)) > 1:
            axes[key] = {value: Value.model_validate({key: value}) for value in values}
        else:
            overrides[key] = values[0]
    if not axes:
        load_recipe(spec.recipe)  # a mistake in it comes first
        keys = " or `axes`, `runs`" if spec.file != spec.recipe else ""
        expected = f"expected section.key=value,value{keys}, for example d2e.alpha=0.1,0.5"
        raise UserError(f"{spec.file}: a sweep without an axis; {expected}")
    several = (axis for axis, changes in axes.items() if axis.startswith("eval.") and len(changes) > 1)
    if axis := next((axis for axis in several if axis != "eval.alpha"), None):
        raise UserError(
            f"{axis}={','.join(axes[axis])}: changes how a model is scored, not the model; expected one value",
            remedy="give one value for all points, or score the trained points again with d2e eval",
        )
    called = {*overrides, *(axes.keys() - spec.axes.keys())}
    spec = spec.model_copy(update={"recipe": recipe, "axes": axes})
    points, trained, scored = list[Point](), dict[str, str](), dict[str, str]()
    for point in _make_points(spec, folder, overrides, called):
        first = trained.setdefault(point.training(), point.name)
        rows = str(point.build) if spec.bench == OWN_DATA else ""
        same = scored.setdefault(point.training() + point.scoring() + rows, point.name)
        points.append(replace(point, trained_in=first, scored_in=same))
    shown = {axis: list(values) for axis, values in axes.items()}
    suffixes = list(dict.fromkeys(point.values[EVALUATION] for point in points))
    shown |= {EVALUATION: suffixes} if len(suffixes) > 1 else {}
    spec = _with_named_points(spec, points)
    known, runs = {point.name for point in points}, spec.axes.get(RUN, {})
    if unknown := [name for name in names if name not in known | runs.keys()]:
        raise UserError(
            f"{unknown[0]!r}: neither a run of the sweep nor an override.{did_you_mean(unknown[0], [*runs, *known])}",
            remedy=f"expected section.key=value, AXIS=VALUE{', or some of ' if runs else ''}{', '.join(runs)}",
        )
    chosen = {
        point.name
        for point in points
        if all(point.values[axis] in values for axis, values in only.items())
        and (not names or {point.name, point.values.get(RUN)} & set(names))
    }
    return Sweep(stem, spec, folder, shown, points, frozenset(chosen), overrides)


def _make_points(spec: SweepSpec, folder: Path, common: dict[str, str], called: Container[str]) -> Iterator[Point]:
    """Yield the points of a sweep in this folder; `common` are overrides of all recipes, `called` the call's keys."""
    short, taken, builds = short_keys(list(spec.axes)), set[str](), dict[str, tuple[str, ...]]()
    for names in product(*spec.axes.values()):
        values = dict(zip(spec.axes, names, strict=True))
        changes = [spec.axes[axis][name] for axis, name in values.items()]
        if any(values.get(axis) in excluded for change in changes for axis, excluded in change.not_with.items()):
            continue

        def filled(text: str, values: dict[str, str] = values) -> str:
            for axis, value in values.items():
                text = text.replace(f"{{{axis}}}", value)
            return text

        # A value in a name has the characters of a file's name.
        plain = {axis: re.sub(r"[^\w.+-]+", "-", name.strip()).strip("-") or "empty" for axis, name in values.items()}
        parts = [f"{short[axis]}={plain[axis]}" if "." in axis else name for axis, name in values.items()]
        merged, evaluations = {**spec.overrides, **common}, dict(spec.evaluations)
        for change in changes:
            merged |= change.overrides
            evaluations |= change.evaluations
        overrides = {key: filled(as_text(value)) for key, value in merged.items()}
        build = tuple(shlex.split(filled(" ".join([spec.build, *(change.build for change in changes)]))))
        scored = tuple(split_words("eval_args", filled(" ".join(change.eval_args for change in changes))))
        errors = tuple(shlex.split(filled(" ".join(change.errors for change in changes))))
        if build:
            data = data_folder(folder, build)
            if builds.setdefault(data.name, build) != build:
                raise UserError(
                    f"the data folder {data.name!r}: is that of two builds, {shlex.join(builds[data.name])} and "
                    f"{shlex.join(build)}; expected builds that differ in letters, digits and . _ = + -"
                )
            overrides.setdefault("data.train", json.dumps(str(data / "train.parquet")))
            if spec.probe is not None:
                overrides["data.probe"] = json.dumps(str(data / "test.parquet"))
        for suffix, evaluation in evaluations.items():
            name = ",".join(parts)[:_LONGEST_NAME] + suffix
            if not re.fullmatch(r"\w[\w.+=,-]*", name) or name in taken or name in ("data", "logs"):
                raise UserError(
                    f"the name {name!r}: {'is that of two points' if name in taken else 'cannot be a folder'}; "
                    "expected values that differ in letters, digits and . _ + -"
                )
            taken.add(name)
            words = [f"{key}={text}" for key, text in overrides.items()]
            recipe = _load(spec, [*words, f"{OUTPUT}={json.dumps(str(folder / name))}"], called)
            shown = {**values, EVALUATION: suffix.strip("-") or "default"}
            train = all(change.train for change in changes)
            yield Point(name, suffix, shown, words, recipe, evaluation, train, build, scored, errors)


def _load(spec: SweepSpec, overrides: Sequence[str], called: Container[str]) -> Recipe:
    """Load the recipe of a point; UserError names the sweep's file if its keys are wrong."""
    try:
        return load_recipe(spec.recipe, overrides)
    except UserError as error:
        load_recipe(spec.recipe, [word for word in overrides if word.partition("=")[0] in called])
        raise UserError(f"{spec.file}: {error.message.removeprefix(f'{spec.recipe}: ')}", error.remedy) from None


def _with_named_points(spec: SweepSpec, points: Sequence[Point]) -> SweepSpec:
    """Return the file with the points of its tables spelled out; UserError if a name fits none."""
    suffixes = {point.name: point.suffix for point in points}

    def named(table: str, patterns: Sequence[str]) -> list[str]:
        names = dict[str, None]()
        for name in patterns:
            # `sft,*` stands for the default evaluation, `sft,*-plain` for the one with that suffix.
            suffix = max((suffix for suffix in suffixes.values() if name.endswith(suffix)), key=len)
            fitting = [known for known in fnmatch.filter(suffixes, name) if suffixes[known] == suffix]
            fitting = [name] if name in suffixes else fitting
            if not fitting:
                raise UserError(f"{table}: no point {name!r}.{did_you_mean(name, sorted(suffixes))}")
            names |= dict.fromkeys(fitting)
        return list(names)

    def with_points(tables: Any) -> Any:
        return {name: table.model_copy(update={"points": named(name, table.points)}) for name, table in tables.items()}

    comparisons = {name: named(name, names) for name, names in spec.comparisons.items()}
    tables = {"paper_tables": with_points(spec.paper_tables), "reports": with_points(spec.reports)}
    return spec.model_copy(update={"comparisons": comparisons, **tables})


def data_folder(out: Path, build: Sequence[str]) -> Path:
    """Return the folder of a build, which is named by its words; of many words by the first ones and a digest."""
    name = re.sub(r"[^\w.=+-]+", "-", "-".join(build)).strip("-")
    return out / "data" / (name if len(name) <= _LONGEST_DATA else f"{name[: _LONGEST_DATA - 17]}-{digest(build)}")


def short_keys(axes: Sequence[str]) -> dict[str, str]:
    """Return key → its last part, or the whole key if two keys end alike."""
    last = [axis.rpartition(".")[2] for axis in axes]
    return {axis: short if last.count(short) == 1 else axis for axis, short in zip(axes, last, strict=True)}


def split_values(word: str, text: str) -> list[str]:
    """Split values at commas outside brackets and quotes, like YAML; UserError if one is empty or not closed."""
    try:
        nodes: list[yaml.Node] = getattr(yaml.compose(f"[{text}]", Loader=yaml.SafeLoader), "value", [])
    except yaml.YAMLError:
        nodes = []
    if not nodes or text.rstrip().endswith(","):
        raise UserError(f"{word!r}: expected YAML values separated by single commas", "write null for no value")
    return [text[node.start_mark.index - 1 : node.end_mark.index - 1] for node in nodes]

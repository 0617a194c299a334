"""A sweep of named runs: a YAML file that says what each changes in a recipe and how its model is scored.

    recipe: smollm2-135m-mini/d2e
    suite: piper                                # or bench: PATH
    evaluations:                                # of every run: what follows its name → how its model is decoded
      "": {}
      -plain: {decoder: plain}
      -adacad: {decoder: adacad}
    runs:
      d2e: {}
      sft: {overrides: {d2e.debias: false, d2e.distill: false}}
      base: {train: false}
    comparisons:
      main: [sft, d2e, d2e-plain]

Each scored model is a point of the sweep, named by its run and evaluation: `d2e`, `d2e-plain`. Points that train the
same share one training, as in a grid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from d2e_sft.data.sample import describe_validation_error
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import load_yaml
from eval.compare.paper_layouts import Layout
from eval.sweep.grid import RUN, Axis, Evaluation, Point, join_equal, load_point

_NAME = re.compile(r"[\w][\w.+-]*")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NamedRun(_Part):
    """One run: what it changes in the recipe, and how its model is scored besides the plan's `evaluations`.

    Attributes:
        train: false scores the recipe's model as it is.
        evaluations: these are added to the plan's, and take the place of those with the same suffix.
    """

    train: bool = True
    overrides: dict[str, Any] = Field(default_factory=dict)
    evaluations: dict[str, Evaluation] = Field(default_factory=dict)


class PaperTableOf(_Part):
    """Points as rows of a paper table, in a layout of `d2e table`."""

    layout: Layout
    points: list[str] = Field(min_length=1)


class ReportOf(_Part):
    """Points on one HTML page, as `d2e report` makes it."""

    points: list[str] = Field(min_length=1)
    title: str | None = None
    no_texts: bool = False


class Plan(_Part):
    """The file's content.

    Attributes:
        eval_args: more for each `d2e eval`; `train_args` the same for `d2e train`.
        comparisons: file name → points, as `d2e compare` takes them: differences are to the first.
        paper_tables: file name → table.
        reports: file name → page.
    """

    recipe: str
    suite: str | None = None
    bench: str | None = None
    out: str | None = None
    train_args: str = ""
    eval_args: str = ""
    evaluations: dict[str, Evaluation] = Field(default_factory=lambda: {"": Evaluation()})
    runs: dict[str, NamedRun] = Field(min_length=1)
    comparisons: dict[str, list[str]] = Field(default_factory=dict)
    paper_tables: dict[str, PaperTableOf] = Field(default_factory=dict)
    reports: dict[str, ReportOf] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _points_are_told_apart_and_known(self) -> Self:
        if any("train.output_dir" in run.overrides for run in self.runs.values()):
            raise ValueError("train.output_dir: a sweep gives every run a folder of its own; expected `out`")
        names = [name for run in self.runs for name in self.points_of(run)]
        for name in names:
            if not _NAME.fullmatch(name):
                raise ValueError(f"the name {name!r}: expected letters, digits and the characters . _ + -")
            if names.count(name) > 1:
                raise ValueError(f"the name {name!r} is that of two points; expected names with other suffixes")
        tables = {name: table.points for name, table in self.paper_tables.items()}
        reports = {name: report.points for name, report in self.reports.items()}
        for table, points in (self.comparisons | tables | reports).items():
            for point in points:
                if point not in names:
                    raise ValueError(f"{table}: no point {point!r}.{did_you_mean(point, names)}")
        return self

    def points_of(self, run: str) -> dict[str, Evaluation]:
        """The names of a run's points, and how each is decoded."""
        return {run + suffix: how for suffix, how in {**self.evaluations, **self.runs[run].evaluations}.items()}

    def choose(self, names: Collection[str]) -> frozenset[str]:
        """The points of these runs, or points of these names; without names all.

        Raises:
            UserError: there is neither a run nor a point of that name.
        """
        known = {name: [name] for run in self.runs for name in self.points_of(run)}
        known |= {run: list(self.points_of(run)) for run in self.runs}
        for name in names:
            if name not in known:
                raise UserError(
                    f"{name!r}: neither a run of the plan nor an override.{did_you_mean(name, list(known))}",
                    remedy=f"expected section.key=value, or some of {', '.join(self.runs)}",
                )
        return frozenset(point for name in names or self.runs for point in known[name])


def read_plan(path: str) -> Plan | None:
    """The plan in a file; None where the file is none, such as a recipe or a name.

    Raises:
        UserError: it says what is run, but not in a way that can be understood.
    """
    content = yaml_with(path, "runs")
    if content is None:
        return None
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: not the plan of a sweep ({describe_validation_error(error)})") from None


def yaml_with(path: str, key: str) -> dict[str, Any] | None:
    """What a YAML file says, if it has this key; None for any other file, of which another reader may complain."""
    file = Path(path)
    if not file.is_file():
        return None
    try:
        content = load_yaml(file.read_text(encoding="utf-8"), texts_only=True)
    except (yaml.YAMLError, ValueError):
        return None
    return content if isinstance(content, dict) and key in content else None


def plan_points(plan: Plan, recipe: str, out: Path, common: Sequence[str] = ()) -> tuple[Axis, list[Point]]:
    """The plan's points, and the axis that they stand on, which is their names.

    Args:
        common: overrides of every run; a run's own go before them.

    Raises:
        UserError: the recipe does not load with a run's overrides.
    """
    points = []
    for run, named in plan.runs.items():
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in named.overrides.items()}
        overrides = [*common, *(f"{key}={value}" for key, value in texts.items())]
        for name, evaluation in plan.points_of(run).items():
            loaded = load_point(recipe, overrides, out / name)
            points.append(Point(name, {RUN: name}, overrides, loaded, evaluation, named.train))
    return Axis(RUN, tuple(point.name for point in points)), join_equal(points)

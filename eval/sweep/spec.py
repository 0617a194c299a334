"""The file of a sweep: which trainings it makes of one recipe, and how they are scored.

    recipe: smollm2-135m-habit/d2e
    out: runs/mine
    overrides: {train.seed: "{seed}"}           # of all trainings; {axis} is replaced by the value's name
    runs:                                       # named trainings: what each changes in the recipe
      base: {train: false}                      # the recipe's model as it is
      sft: {d2e.objective: sft}
      d2e: {evaluations: {-cut: {plausibility: 0.1}}}
    axes:                                       # further axes; all combinations are trained
      seed: [0, 1, 2]
      data: {as-is: {}, swapped: {build: --swap 0.5}}
      d2e.alpha: [0.1, 0.5]                     # a key of the recipe and its values
    build: --datasets habit --seed {seed}       # words of `d2e data build`; each combination has its own data
    suite: piper                                # or bench: PATH; what `d2e eval` scores. Built first if `build` is
                                                # set; bench: "{build}" are the test rows of its own data
    evaluations:                                # suffix of the point's name → how its model is decoded
      "": {}
      -plain: {decoder: plain}
    probe: {reference: {run: sft}}              # read the accuracy during training, and compare with the reference
    scales: {small: {suite: mini}}              # --scale small: these keys replace the file's; runs are merged

`runs` is the axis named `run`. A point is a combination of values and one evaluation: `sft,0,as-is,alpha=0.1-plain`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from d2e_sft.util.files import load_yaml
from d2e_sft.util.paths import bundled
from eval.sweep.parts import Evaluation, Expected, PaperTableOf, Part, Probe, ReportOf, Value

RUN, SEED = "run", "seed"
OWN_DATA = "{build}"


class SweepSpec(Part):
    """The file's content; the module's docstring explains the keys.

    Attributes:
        results: JSON file of all results. Measurements of the probe that it holds are not repeated.
            [default: OUT/results.json]
        keep_models: False deletes the weights of finished trainings.
        keep_checkpoints: False deletes the checkpoints of finished trainings.
        expected: What the commands of a dry run cost.
        comparisons: File name → points, like `d2e compare`: differences are to the first.
        paper_tables: File name → table.
        published: The paper's model whose values stand below ours in these tables; empty for each run's own.
        reports: File name → page.
    """

    recipe: str
    out: str | None = None
    results: str | None = None
    bench: str | None = None
    suite: str | None = None
    train_args: str = ""
    eval_args: str = ""
    build: str = ""
    overrides: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, dict[str, Value]] = Field(default_factory=dict)
    evaluations: dict[str, Evaluation] = Field(default_factory=lambda: {"": Evaluation()})
    probe: Probe | None = None
    keep_models: bool = True
    keep_checkpoints: bool = True
    expected: Expected | None = None
    comparisons: dict[str, list[str]] = Field(default_factory=dict)
    paper_tables: dict[str, PaperTableOf] = Field(default_factory=dict)
    published: str | None = None
    reports: dict[str, ReportOf] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _runs_are_an_axis(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        axes = content.get("axes") or {}
        if "runs" in content:
            axes = {RUN: content["runs"], **axes}
        axes = {axis: values_of(axis, values) for axis, values in axes.items()}
        return {**{key: value for key, value in content.items() if key != "runs"}, "axes": axes}

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for axis, value in self.probe.reference.items() if self.probe is not None else ():
            self.check_value(axis, value)
        if self.probe is not None and SEED not in self.axes:
            raise ValueError(f"axes: got {', '.join(self.axes)}; a probe needs one named {SEED} to average over")
        return self

    def check_value(self, axis: str, value: str) -> None:
        """Raise UserError, which lists what the sweep has, if it has no such axis or value."""
        if axis not in self.axes:
            nearest = did_you_mean(axis, list(self.axes))
            raise UserError(f"axis {axis!r}: unknown; expected one of {', '.join(self.axes)}.{nearest}")
        if value not in self.axes[axis]:
            known = list(self.axes[axis])
            raise UserError(f"{axis}={value}: expected one of {', '.join(known)}.{did_you_mean(value, known)}")


def values_of(axis: str, values: Any) -> Any:
    """Turn a list of values into name → overrides; an axis that is not a recipe key only fills `{braces}`."""
    if not isinstance(values, list):
        return values
    return {as_text(value): {axis: value} if "." in axis else {} for value in values}


def as_text(value: Any) -> str:
    """Return a value of YAML as an override on the command line has it."""
    return value if isinstance(value, str) else json.dumps(value)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Replace each `{axis}` by the name of its value."""
    for axis, value in values.items():
        text = text.replace(f"{{{axis}}}", value)
    return text


def read_spec(name: str, scale: str | None = None) -> SweepSpec:
    """Read the file of a sweep, or a recipe as a sweep without axes.

    UserError if its runs or axes are not valid, or it has no such scale.
    """
    content: Any = None
    ours = bundled("launch") / name.removeprefix("launch/")
    if not Path(name).is_file() and name.startswith("launch/") and ours.is_file():  # outside the clone
        name = str(ours)
    if Path(name).is_file():
        with suppress(yaml.YAMLError, ValueError):  # reading it as a recipe reports what is wrong
            content = load_yaml(Path(name).read_text(encoding="utf-8"), texts_only=True)
    is_sweep = isinstance(content, dict) and bool({"runs", "axes"} & content.keys())
    scales: Any = content.pop("scales", {}) if is_sweep else {}
    known = list(scales) if isinstance(scales, dict) else []
    if scale is not None and scale not in known:
        raise UserError(
            f"--scale {scale}: {name} has {'the scales ' + ', '.join(known) if known else 'no scales'}."
            f"{did_you_mean(scale, known)}",
            remedy="drop --scale, or add `scales` to the sweep's file",
        )
    if not is_sweep:
        return SweepSpec(recipe=name)
    try:
        return SweepSpec.model_validate(content if scale is None else scaled(content, scales[scale]))
    except (ValidationError, UserError) as error:
        problem = error.message if isinstance(error, UserError) else describe_validation_error(error)
        raise UserError(f"{name}: not a valid sweep ({problem})") from None


def scaled(content: dict[str, Any], scale: Any) -> dict[str, Any]:
    """Replace the keys of a sweep by those of a scale, and those of its runs by the scale's; UserError if not keys."""
    if not isinstance(scale, dict) or not isinstance(scale.get("runs") or {}, dict):
        raise UserError(f"scales: got {scale!r}; expected keys of a sweep")
    runs, changed = content.get("runs") or {}, scale.get("runs") or {}
    merged = {name: {**(own or {}), **(changed.get(name) or {})} for name, own in runs.items()}
    return {**content, **scale, **({"runs": merged} if runs else {})}

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
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.config.objectives import View
from d2e_sft.util.errors import UserError, describe_problem, describe_validation_error, did_you_mean
from d2e_sft.util.files import load_yaml
from d2e_sft.util.paths import bundled
from eval.compare.paper_layouts import Layout
from eval.compare.runs import SEED

RUN = "run"
OWN_DATA = "{build}"
OUTPUT = "train.output_dir"


class SpecPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Evaluation(SpecPart):
    """How a point's model is decoded, where this differs from its recipe; None uses the recipe's.

    `without_context` also decodes without the contexts, and sorts the wrong answers by rule like `d2e errors`.
    `suite` is another one than the sweep's.
    """

    alpha: float | None = Field(default=None, ge=0, le=MAX_ALPHA)
    decoder: str | None = None
    plausibility: float = Field(default=0.0, ge=0, le=1)
    without_context: bool = False
    suite: str | None = None

    @model_validator(mode="after")
    def _is_a_decoding(self) -> Self:
        try:
            self.decoding(DecodingConfig())
        except UserError as error:
            raise ValueError(error.message) from None
        return self

    def decoding(self, default: DecodingConfig) -> DecodingConfig:
        options = given_decoder(self.decoder, self.alpha, default.alpha)
        return replace(default, plausibility=self.plausibility, **options)


class Value(BaseModel):
    """What a value of an axis changes: keys of the recipe (the extra fields), and these.

    Attributes:
        build: Further words of `d2e data build`.
        eval_args: Further words of `d2e eval`. With `--setting few_shot` the point's own data are the demonstrations.
        errors: Words of `d2e errors`, which then sorts the wrong answers.
        train: False scores the recipe's model without training.
        evaluations: Added to the sweep's; the same suffix replaces the sweep's.
        not_with: Axis → values that this one is not combined with.
    """

    model_config = ConfigDict(extra="allow")
    build: str = ""
    eval_args: str = ""
    errors: str = ""
    train: bool = True
    evaluations: dict[str, Evaluation] = Field(default_factory=dict)
    not_with: dict[str, list[str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _changes_keys_of_a_recipe(self) -> Self:
        for key in self.overrides:
            if "." not in key:
                raise ValueError(f"{key}: expected section.key.{did_you_mean(key, list(Value.model_fields))}")
            if key == OUTPUT:
                raise ValueError(f"{key}: every training of a sweep has its own folder; set `out`")
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        return self.model_extra or {}


class Probe(SpecPart):
    """Compare accuracies during training; `reference` names one value per compared axis."""

    reference: dict[str, str] = Field(min_length=1)

    @field_validator("reference", mode="before")
    @classmethod
    def _names_are_texts(cls, reference: Any) -> Any:
        return {axis: str(value) for axis, value in reference.items()} if isinstance(reference, dict) else reference


class PaperTableOf(SpecPart):
    """Points as rows of a paper's table, in a layout of `d2e table`; `*` in a name stands for any text."""

    layout: Layout
    points: list[str] = Field(min_length=1)


class ReportOf(SpecPart):
    points: list[str] = Field(min_length=1)
    title: str | None = None
    no_texts: bool = False


class ExpectedEvaluation(SpecPart):
    """Rows of a suite, and the mean tokens of a prompt, of the same without its context, and of an answer."""

    rows: int
    prompt: float
    without_context: float
    answer: float


class Expected(SpecPart):
    """What `--dry-run` counts with: a machine, and the mean tokens of rows before they are built.

    Attributes:
        flops, bytes_per_s: Rates of one device; `utilisation` is the share of `flops` that is reached.
        tokens: View → tokens that it adds to a packed row. `answer` are those of an answer.
        judge_dollars: What a paid judge of the training data costs.
    """

    devices: int
    device: str
    flops: float
    bytes_per_s: float
    utilisation: float = Field(gt=0, le=1)
    rows: int
    tokens: dict[View, float]
    answer: float
    suites: dict[str, ExpectedEvaluation]
    judge_dollars: float | None = None

    @property
    def on(self) -> str:
        return f"{self.devices} × {self.device} at {self.utilisation:.0%} of its FLOP/s"


class SweepSpec(SpecPart):
    """The file's content; the module's docstring explains the keys.

    Attributes:
        results: JSON file of all results, by default OUT/results.json. Measurements that it holds are not repeated.
        keep_models, keep_checkpoints: False deletes the weights or checkpoints of finished trainings.
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
    _file: str = PrivateAttr("")
    reports: dict[str, ReportOf] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _runs_are_an_axis(cls, content: dict[str, Any]) -> dict[str, Any]:
        axes = content.get("axes") or {}
        if "runs" in content:
            axes = {RUN: content["runs"], **axes}
        # A list of values becomes name → overrides; an axis that is not a recipe key only fills `{braces}`.
        axes = {
            axis: {as_text(value): {axis: value} if "." in axis else {} for value in values}
            if isinstance(values, list)
            else values
            for axis, values in axes.items()
        }
        return {**{key: value for key, value in content.items() if key != "runs"}, "axes": axes}

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for axis, value in self.probe.reference.items() if self.probe is not None else ():
            self.check_value(axis, value)
        if self.probe is not None and SEED not in self.axes:
            raise ValueError(f"axes: got {', '.join(self.axes)}; a probe needs one named {SEED} to average over")
        return self

    @property
    def file(self) -> str:
        """The file that was read, which without axes may be the recipe itself."""
        return self._file

    def check_value(self, axis: str, value: str) -> None:
        """Raise UserError, which lists what the sweep has, if it has no such axis or value."""
        if axis not in self.axes:
            nearest = did_you_mean(axis, list(self.axes))
            raise UserError(f"axis {axis!r}: unknown; expected one of {', '.join(self.axes)}.{nearest}")
        if value not in self.axes[axis]:
            known = list(self.axes[axis])
            raise UserError(f"{axis}={value}: expected one of {', '.join(known)}.{did_you_mean(value, known)}")


def as_text(value: Any) -> str:
    """Return a value of YAML as an override on the command line has it."""
    return value if isinstance(value, str) else json.dumps(value)


def split_words(option: str, text: str) -> list[str]:
    """Split arguments like a shell, and `--option=value` in two; UserError if a quotation is not closed."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}; expected arguments as a shell reads them") from None
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


def read_spec(name: str, scale: str | None = None) -> SweepSpec:
    """Read the file of a sweep, or a recipe as a sweep without axes; UserError if it is not valid."""
    content: Any = None
    ours = bundled("launch") / name.removeprefix("launch/")
    if not Path(name).is_file() and name.startswith("launch/") and ours.is_file():  # outside the clone
        name = str(ours)
    if Path(name).is_file():
        if Path(name).suffix.lower() not in (".yaml", ".yml"):
            raise UserError(f"{name}: not a sweep file or recipe; expected .yaml", "name such a file, or a recipe")
        try:
            content = load_yaml(Path(name).read_text(encoding="utf-8"), texts_only=True)
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"{name}: not a YAML file ({error})") from None
    is_sweep = isinstance(content, dict) and bool({"recipe", "runs", "axes"} & content.keys())
    scales: Any = content.pop("scales", {}) if is_sweep else {}
    known = list(scales) if isinstance(scales, dict) else []
    if scale is not None and scale not in known:
        raise UserError(
            f"--scale {scale}: {name} has {'the scales ' + ', '.join(known) if known else 'no scales'}."
            f"{did_you_mean(scale, known)}",
            remedy="drop --scale, or add `scales` to the sweep's file",
        )
    content = content if is_sweep else {"recipe": name}
    try:
        spec = SweepSpec.model_validate(content if scale is None else scaled(content, scales[scale]))
    except (ValidationError, UserError) as error:
        problem = error.message if isinstance(error, UserError) else describe_validation_error(error, _describe)
        raise UserError(f"{name}: not a valid sweep ({problem})") from None
    spec._file = name
    return spec


def _describe(problem: Mapping[str, Any]) -> str:
    """Return a problem that pydantic found; an unknown key is set against those of its part of the file."""
    if problem["type"] != "extra_forbidden":
        return describe_problem(problem)
    *above, key = map(str, problem["loc"])
    part: Any = SweepSpec
    for step in above:  # the name of a table or value is no key, and leads to what the mapping holds
        part = part.model_fields[step].annotation if step in getattr(part, "model_fields", {}) else part
        part = next((kind for kind in _kinds(part) if issubclass(kind, BaseModel)), part)
    known = [*part.model_fields, *(["runs", "scales"] if part is SweepSpec else [])]
    of = f" of {'.'.join(step or repr(step) for step in above)}" if above else ""
    return f"unknown key {key!r}{of}; expected some of {', '.join(known)}.{did_you_mean(key, known)}"


def _kinds(annotation: Any) -> list[type]:
    """Return the classes in an annotation, the outer ones first."""
    inner = [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [*([annotation] if isinstance(annotation, type) and not inner else []), *inner]


def scaled(content: dict[str, Any], scale: Any) -> dict[str, Any]:
    """Replace the keys of a sweep by those of a scale, and those of its runs by the scale's; UserError if not keys."""
    if not isinstance(scale, dict) or not isinstance(scale.get("runs") or {}, dict):
        raise UserError(f"scales: got {scale!r}; expected keys of a sweep")
    runs, changed = content.get("runs") or {}, scale.get("runs") or {}
    merged = {name: {**(run or {}), **(changed.get(name) or {})} for name, run in runs.items()}
    return {**content, **scale, **({"runs": merged} if runs else {})}

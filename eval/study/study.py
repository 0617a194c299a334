"""The file of a study: axes of named values, the data and the recipe of each of their combinations.

    recipe: smollm2-135m-habit/d2e
    out: runs/habit                             # logs, data and pages
    rows: docs/results/habit.json               # what was measured; combinations in it are not run again
    build: --datasets habit habit.strength={strength} --seed {seed}
    overrides: {train.seed: "{seed}"}
    axes:
      objective: {sft: {d2e.objective: sft}, product: {d2e.objective: product}}
      data: {as-is: {}, swapped: {build: --swap 0.5}}
      strength: [0.5, 0.95]
      seed: [0, 1, 2]
    reference: {objective: sft, data: as-is}

A value of an axis is its name with what it changes: keys of the recipe, and `build` for more words of
`d2e data build`. `{axis}` stands for the value's name. Curves are averaged over the axis `seed`.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.data.sample import describe_validation_error
from d2e_sft.util.errors import UserError, did_you_mean
from eval.sweep.plan import yaml_with

SEED = "seed"
BUILD = "build"
_NAME = re.compile(r"[\w][\w.+-]*")


class Study(BaseModel):
    """The file's content.

    Attributes:
        rows: the file of measured rows.
        build: words of `d2e data build`, without `--out`.
        overrides: of the recipe, for all combinations.
        axes: axis → name of a value → what it changes.
        reference: the values that the other combinations are compared with; axes that are not named keep theirs.
        keep_models: keep the weights of finished trainings.
    """

    model_config = ConfigDict(extra="forbid")
    recipe: str
    out: str
    rows: str
    build: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, dict[str, dict[str, Any]]] = Field(min_length=1)
    reference: dict[str, str]
    keep_models: bool = False

    @field_validator("axes", mode="before")
    @classmethod
    def _a_list_changes_nothing(cls, axes: Any) -> Any:
        if not isinstance(axes, dict):
            return axes
        return {
            name: {str(value): {} for value in values} if isinstance(values, list) else values
            for name, values in axes.items()
        }

    @field_validator("reference", mode="before")
    @classmethod
    def _names_are_texts(cls, reference: Any) -> Any:
        return {name: str(value) for name, value in reference.items()} if isinstance(reference, dict) else reference

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        if SEED not in self.axes:
            raise ValueError(f"axes: got {', '.join(self.axes)}; expected one named {SEED}, to average over")
        for axis, values in self.axes.items():
            for value in values:
                if not _NAME.fullmatch(value):
                    raise ValueError(f"axes.{axis}: the name {value!r}; expected letters, digits and . _ + -")
        for axis, value in self.reference.items():
            check_value(axis, value, self.axes)
        if not self.reference:
            raise ValueError("reference: names no axis; expected for example {objective: sft}")
        return self


def check_value(axis: str, value: str, axes: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse an axis, or a value of it, that a study lacks.

    Raises:
        ValueError: says which there are.
    """
    if axis not in axes:
        raise ValueError(f"axis {axis!r}: not of this study; expected one of {', '.join(axes)}.{_nearest(axis, axes)}")
    if value not in axes[axis]:
        known = ", ".join(axes[axis])
        raise ValueError(f"{axis}={value}: expected one of {known}.{_nearest(value, axes[axis])}")


def _nearest(given: str, known: Mapping[str, Any]) -> str:
    return did_you_mean(given, list(known))


@dataclass(frozen=True)
class Combination:
    """One training: a value of each axis, and what follows from them.

    Attributes:
        values: axis → name of its value.
        base: the recipe's name.
        overrides: of the recipe, as `d2e train` takes them, with data and output folder.
        build: arguments of `d2e data build` that make its data.
        data: the folder of that data, shared by all combinations whose arguments are the same.
        asked: overrides of the call itself, beside those of the file.
    """

    values: dict[str, str]
    base: str
    overrides: list[str]
    build: list[str]
    data: Path
    run: Path
    recipe: Recipe
    asked: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ",".join(self.values.values())


def read_study(path: str) -> Study | None:
    """The study in a file; None where the file is none, such as a recipe or a plan.

    Raises:
        UserError: it has axes, but cannot be understood.
    """
    content = yaml_with(path, "axes")
    if content is None:
        return None
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: not a study ({describe_validation_error(error)})") from None


def combinations(study: Study, out: Path, words: Sequence[str] = ()) -> list[Combination]:
    """The combinations, in the order of the axes with the last one changing fastest.

    Args:
        words: `AXIS=VALUE,VALUE` keeps these values alone; `SECTION.KEY=VALUE` overrides the recipe of all.

    Raises:
        UserError: an axis or a value that the study lacks, or a recipe that does not load.
    """
    chosen = {axis: list(values) for axis, values in study.axes.items()}
    asked: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word!r}: expected AXIS=VALUE,VALUE or section.key=value")
        if "." in key:
            asked[key] = text
            continue
        for value in text.split(","):
            try:
                check_value(key, value, study.axes)
            except ValueError as error:
                raise UserError(str(error)) from None
        chosen[key] = text.split(",")
    found = []
    for names in itertools.product(*chosen.values()):
        found.append(_combination(study, out, dict(zip(chosen, names, strict=True)), asked))
    return found


def _combination(study: Study, out: Path, values: dict[str, str], asked: dict[str, str]) -> Combination:
    changes: dict[str, Any] = {**study.overrides, **asked}
    build = study.build
    for axis, name in values.items():
        for key, value in study.axes[axis][name].items():
            if key == BUILD:
                build += f" {value}"
            else:
                changes[key] = value
    arguments = shlex.split(_filled(build, values))
    data = out / "data" / _folder_name(arguments)
    run = out / "runs" / ",".join(values.values())
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    overrides = [f"{key}={_filled(text, values)}" for key, text in texts.items()]
    files = {"data.train": data / "train.parquet", "data.probe": data / "test.parquet", "train.output_dir": run}
    overrides += [f"{key}={json.dumps(str(path))}" for key, path in files.items()]
    return Combination(
        values, study.recipe, overrides, arguments, data, run, load_recipe(study.recipe, overrides), asked
    )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)


def _folder_name(arguments: Sequence[str]) -> str:
    """The arguments as the name of a folder, so that one who looks there sees what the data are."""
    return re.sub(r"[^\w.=+-]+", "-", "-".join(arguments)).strip("-")[:200]

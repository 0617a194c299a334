"""The grid of a sweep: `section.key=v1,v2` arguments, the points they span, and which points the method makes equal.

Values are written as in an override of `d2e train`, so a point trains what `d2e train RECIPE key=value …` would train.
A comma inside brackets or quotes belongs to a value: `model.lora.target_modules=[q_proj,v_proj],all-linear`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from d2e_sft.config.decoding import MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.util.errors import UserError

RUN = "run"  # the key of the axis that names the runs of a plan
_CLOSING = {"[": "]", "{": "}"}
_OUTPUT = "train.output_dir"
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Axis:
    """A key of the recipe and the values it takes, as text."""

    key: str
    values: tuple[str, ...]


class Evaluation(BaseModel):
    """How a point's model is decoded, beyond what its recipe says.

    Attributes:
        alpha: of the decoder `d2e`; None takes the recipe's.
        decoder: as `--decoder` of `d2e eval` takes it; None takes the recipe's.
        without_context: ask without the contexts, too, and sort the wrong answers by rule, as `d2e errors` does.
    """

    model_config = ConfigDict(extra="forbid")
    alpha: float | None = Field(default=None, ge=0, le=MAX_ALPHA)
    decoder: str | None = None
    plausibility: float = Field(default=0.0, ge=0, le=1)
    without_context: bool = False

    @model_validator(mode="after")
    def _is_one_decoding(self) -> Self:
        try:
            self.decoding(DecodingConfig())
        except UserError as error:
            raise ValueError(error.message) from None
        return self

    def decoding(self, default: DecodingConfig) -> DecodingConfig:
        """How answers are decoded, where the recipe says `default`."""
        given = given_decoder(self.decoder, self.alpha, default.alpha)
        return replace(default, plausibility=self.plausibility, **given)


@dataclass(frozen=True)
class Point:
    """One combination of values, or one scored run of a plan.

    Attributes:
        name: of its folder; depends on its values alone.
        values: axis key → value, as text.
        overrides: as `d2e train` takes them, without the output folder.
        recipe: with the overrides and the sweep's folder for it as output.
        train: false where the recipe's model is scored as it is.
        trained_in: name of the first point that trains the same; its own where it is the first.
        scored_in: the same for what is decoded and scored.
    """

    name: str
    values: dict[str, str]
    overrides: list[str]
    recipe: Recipe
    evaluation: Evaluation = field(default_factory=Evaluation)
    train: bool = True
    trained_in: str = ""
    scored_in: str = ""

    @property
    def decoding(self) -> DecodingConfig:
        """How it is decoded."""
        return self.evaluation.decoding(self.recipe.decoding)

    def training(self) -> str:
        """What two points share that train the same model: all but evaluation, and d2e options without effect."""
        if not self.train:
            return self.recipe.model.model_dump_json()
        content = self.recipe.model_dump(exclude={"eval": True, "d2e": True, "train": {"output_dir"}})
        content["d2e"] = self.recipe.d2e.of_training()
        return json.dumps(content, sort_keys=True)

    def scoring(self) -> str:
        """What two points of one model share that are decoded the same; α is that of training unless it is set."""
        how = self.recipe.eval.model_dump() | self.evaluation.model_dump() | {"decoder": None}
        how |= self.decoding.record()
        return json.dumps(how, sort_keys=True)


def parse_axes(arguments: Sequence[str]) -> list[Axis]:
    """The axes in the order given.

    Raises:
        UserError: no axis, one without key or value, a bracket or quote that is not closed, a key given twice, or one
            that a sweep sets itself.
    """
    axes: list[Axis] = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UserError(f"{argument!r}: expected section.key=value,value, for example d2e.alpha=0.1,0.5,1.0")
        if key == _OUTPUT:
            raise UserError(f"{argument!r}: a sweep gives every point a folder of its own", "name it with --out")
        if key in (axis.key for axis in axes):
            raise UserError(f"{argument!r}: the key {key!r} is given twice", "put all values into one list")
        values = tuple(_split(argument, text))
        if key.startswith("eval.") and key != "eval.alpha" and len(values) > 1:
            raise UserError(
                f"{argument!r}: changes how a model is scored, not the model; expected one value",
                remedy="give one value for all points, or score the trained points again with d2e eval",
            )
        axes.append(Axis(key, values))
    if not axes:
        raise UserError("a sweep without an axis; expected section.key=value,value, for example d2e.alpha=0.1,0.5")
    return axes


def grid(recipe: str, axes: Sequence[Axis], out: Path) -> list[Point]:
    """All combinations, in the order of the axes with the last one changing fastest.

    Raises:
        UserError: the recipe does not load with some value (an unknown key, a value that does not fit).
    """
    first = [f"{axis.key}={axis.values[0]}" for axis in axes]
    for place, axis in enumerate(axes):  # value by value first, so that the message is about the one that is wrong
        for value in axis.values:
            load_recipe(recipe, [*first[:place], f"{axis.key}={value}", *first[place + 1 :], f"{_OUTPUT}={out}"])
    points = []
    for name, values in zip(_names(axes), product(*(axis.values for axis in axes)), strict=True):
        chosen = {axis.key: value for axis, value in zip(axes, values, strict=True)}
        overrides = [f"{key}={value}" for key, value in chosen.items()]
        points.append(Point(name, chosen, overrides, load_point(recipe, overrides, out / name)))
    return join_equal(points)


def load_point(recipe: str, overrides: Sequence[str], folder: Path) -> Recipe:
    """The recipe of a point whose run folder this is."""
    return load_recipe(recipe, [*overrides, f"{_OUTPUT}={json.dumps(str(folder))}"])


def join_equal(points: Sequence[Point]) -> list[Point]:
    """The points, each with the first that trains the same and the first that is scored the same."""
    trained: dict[str, str] = {}
    scored: dict[str, str] = {}
    return [
        replace(
            point,
            trained_in=trained.setdefault(point.training(), point.name),
            scored_in=scored.setdefault(point.training() + point.scoring(), point.name),
        )
        for point in points
    ]


def short_keys(axes: Sequence[Axis]) -> dict[str, str]:
    """Key → its last part, or the whole key where two keys end alike."""
    last = [axis.key.rpartition(".")[2] for axis in axes]
    return {axis.key: short if last.count(short) == 1 else axis.key for axis, short in zip(axes, last, strict=True)}


def describe_point(point: Point, axes: Sequence[Axis]) -> str:
    """`alpha=0.5, debias=true`: the values that tell it from other points; of a plan's run its name."""
    if RUN in point.values:
        return point.name
    short = short_keys(axes)
    return ", ".join(f"{short[axis.key]}={point.values[axis.key]}" for axis in varying(axes))


def varying(axes: Sequence[Axis]) -> list[Axis]:
    """The axes with several values; all of them where none has."""
    return [axis for axis in axes if len(axis.values) > 1] or list(axes)


def _names(axes: Sequence[Axis]) -> list[str]:
    short, told = short_keys(axes), {axis.key for axis in varying(axes)}
    names = []
    for values in product(*(axis.values for axis in axes)):
        pairs = [(axis.key, value) for axis, value in zip(axes, values, strict=True) if axis.key in told]
        name = ",".join(f"{short[key]}={_in_a_name(value)}" for key, value in pairs)
        names.append(name[:_LONGEST_NAME])
    # Values that differ in characters that a folder's name cannot have.
    return [f"{name}-{names[:i].count(name) + 1}" if names.count(name) > 1 else name for i, name in enumerate(names)]


def _in_a_name(value: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", value.strip()).strip("-") or "empty"


def _split(argument: str, text: str) -> Iterator[str]:
    """The values of a list, cut at the commas that are in no bracket and no quotes."""
    value, closing, quote = "", [], ""
    for mark in text:
        if quote:
            quote = "" if mark == quote else quote
        elif mark in "\"'":
            quote = mark
        elif mark in _CLOSING:
            closing.append(_CLOSING[mark])
        elif closing and mark == closing[-1]:
            closing.pop()
        if mark == "," and not (quote or closing):
            yield _value(argument, value)
            value = ""
        else:
            value += mark
    if quote or closing:
        raise UserError(f"{argument!r}: {quote or closing[-1]} is missing; expected values separated by commas")
    yield _value(argument, value)


def _value(argument: str, text: str) -> str:
    if not text.strip():
        raise UserError(
            f"{argument!r}: an empty value; expected values separated by single commas",
            remedy="write null for no value",
        )
    return text.strip()

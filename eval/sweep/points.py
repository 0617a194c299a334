"""The points of a sweep: combinations of its axes' values, each scored in one or several ways.

Points that the method makes equal, such as any α without debiasing, share one training or one score.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.util.errors import UserError
from eval.sweep.parts import OUTPUT, Evaluation
from eval.sweep.spec import SweepSpec, as_text, filled

EVALUATION = "evaluation"  # the axis of what differs only in decoding
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Point:
    """One combination of values with one evaluation.

    Attributes:
        name: Name of the point's folder; depends only on its values.
        values: Axis → name of the value.
        suffix: End of the name that stands for the evaluation; may be empty.
        overrides: Overrides for `d2e train`, without the output folder.
        recipe: The recipe with these overrides.
        train: False to score the recipe's model without training.
        build: Arguments of `d2e data build` for its data; empty if the recipe names the data.
        trained_in: Name of the first point with the same training.
        scored_in: Name of the first point with the same training and decoding.
    """

    name: str
    suffix: str
    values: dict[str, str]
    overrides: list[str]
    recipe: Recipe
    evaluation: Evaluation
    train: bool = True
    build: tuple[str, ...] = ()
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
        content["d2e"] = self.recipe.d2e.of_training()
        return json.dumps(content, sort_keys=True)

    def scoring(self) -> str:
        """Return what decides the scores of a model."""
        how = self.recipe.eval.model_dump() | self.evaluation.model_dump() | {"decoder": None}
        return json.dumps(how | self.decoding.record(), sort_keys=True)


def make_points(spec: SweepSpec, folder: Path, asked: dict[str, str]) -> Iterator[Point]:
    """Yield the points of a sweep in this folder; `asked` are overrides of all recipes."""
    short, taken = short_keys(list(spec.axes)), set[str]()
    for names in product(*spec.axes.values()):
        values = dict(zip(spec.axes, names, strict=True))
        changes = [spec.axes[axis][name] for axis, name in values.items()]
        if any(values.get(axis) in others for change in changes for axis, others in change.not_with.items()):
            continue
        # A value in a name has the characters of a file's name.
        plain = {axis: re.sub(r"[^\w.+-]+", "-", name.strip()).strip("-") or "empty" for axis, name in values.items()}
        parts = [f"{short[axis]}={plain[axis]}" if "." in axis else name for axis, name in values.items()]
        base = ",".join(parts)[:_LONGEST_NAME]
        merged = {**spec.overrides, **asked}
        for change in changes:
            merged |= change.overrides
        overrides = {key: filled(as_text(value), values) for key, value in merged.items()}
        build = tuple(shlex.split(filled(" ".join([spec.build, *(change.build for change in changes)]), values)))
        if build:
            data = data_folder(folder, build)
            overrides.setdefault("data.train", _quoted(data / "train.parquet"))
            overrides |= {"data.probe": _quoted(data / "test.parquet")} if spec.probe is not None else {}
        evaluations = dict(spec.evaluations)
        for change in changes:
            evaluations |= change.evaluations
        train = all(change.train for change in changes)
        for suffix, evaluation in evaluations.items():
            name = base + suffix
            if not re.fullmatch(r"\w[\w.+=,-]*", name) or name in taken or name in ("data", "logs"):
                raise UserError(
                    f"the name {name!r}: {'is that of two points' if name in taken else 'cannot be a folder'}; "
                    "expected values that differ in letters, digits and . _ + -"
                )
            taken.add(name)
            words = [f"{key}={text}" for key, text in overrides.items()]
            recipe = load_recipe(spec.recipe, [*words, f"{OUTPUT}={_quoted(folder / name)}"])
            shown = {**values, EVALUATION: suffix.strip("-") or "default"}
            yield Point(name, suffix, shown, words, recipe, evaluation, train, build)


def data_folder(out: Path, build: Sequence[str]) -> Path:
    """Return the folder of built data; its name shows the arguments."""
    return out / "data" / re.sub(r"[^\w.=+-]+", "-", "-".join(build)).strip("-")[:200]


def join_equal(points: Iterator[Point]) -> list[Point]:
    """Return the points, each with the first that trains the same and the first that is scored the same."""
    trained: dict[str, str] = {}
    scored: dict[str, str] = {}
    found = []
    for point in points:
        first = trained.setdefault(point.training(), point.name)
        same = scored.setdefault(point.training() + point.scoring(), point.name)
        found.append(replace(point, trained_in=first, scored_in=same))
    return found


def short_keys(axes: Sequence[str]) -> dict[str, str]:
    """Return key → its last part, or the whole key if two keys end alike."""
    last = [axis.rpartition(".")[2] for axis in axes]
    return {axis: short if last.count(short) == 1 else axis for axis, short in zip(axes, last, strict=True)}


def _quoted(path: Path) -> str:
    return json.dumps(str(path))

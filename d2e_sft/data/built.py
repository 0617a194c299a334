"""The origin of rows: the manifest of `d2e data build`, whether a file is as its build wrote it, and a model's tags.

Tags are a row's subset and habit by what a model answers without the context (`d2e data tag`). A habit is one model's,
so each tagged row names the model (`meta.tag`), and rows with another model's tags are reported. The habit of the rows
themselves (`--by questions`) is no model's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from d2e_sft.config.recipe import recipe_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from d2e_sft.util.terminal import warn

if TYPE_CHECKING:
    from d2e_sft.data.sample import EventSample

MANIFEST = "manifest.json"
TAG = "tag"  # key of a row's meta: model (or `by: questions`), confidence, threshold and probability
SWAPPED = "swapped"  # the same: the answer before a swap (`from`), the one after it (`to`), and its pool
_ROWS = ("train.parquet", "dev.parquet", "test.parquet")


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Output(_Part):
    sha256: str


class _Split(_Part):
    rows_written: int


class _Dataset(_Part):
    redistribution: str
    splits: dict[str, _Split]


class _Manifest(_Part):
    project: Literal["d2e-sft"]
    version: str
    outputs: dict[str, _Output]
    datasets: dict[str, _Dataset]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a build; UserError if the folder has none, or it is damaged or another program's."""
    if not (folder / MANIFEST).is_file():
        problem = f"has no {MANIFEST} of a build" if folder.is_dir() else "no such folder"
        raise UserError(
            f"{folder}: {problem}; expected an output of `d2e data build`",
            remedy="name the folder that was given to `d2e data build --out`",
        )
    remedy = "restore it, or build the data again; rows of your own belong in a folder of their own"
    manifest = read_json_as(_Manifest, folder / MANIFEST, "the manifest of a build", remedy)
    return manifest.model_dump(exclude_unset=True)


def manifest_of(file: Path) -> dict[str, Any] | None:
    """Return the manifest next to a file that has the name of a build's rows; None for rows of anyone else."""
    is_built = file.name in _ROWS and (file.parent / MANIFEST).is_file()
    return read_manifest(file.parent) if is_built else None


def warn_if_changed(file: Path, sha256: str) -> None:
    """Warn if a file has changed since its build: results on edited files must not silently carry the old name."""
    manifest = manifest_of(file)
    if manifest is None:
        return
    expected = manifest["outputs"].get(file.name, {}).get("sha256", "nothing")
    if expected != sha256:
        warn(
            f"{file}: changed after it was built (SHA-256 {sha256[:12]}…; {MANIFEST} says {expected[:12]}…), so "
            "the manifest and its card no longer describe its rows; build it again, or keep edited rows in their own "
            "folder"
        )


def taggers(samples: Iterable[EventSample]) -> dict[str, int]:
    """Return the models that tagged the samples, with their numbers of rows."""
    tags = (sample.meta.get(TAG) for sample in samples)
    return dict(Counter(str(tag["model"]) for tag in tags if isinstance(tag, Mapping) and "model" in tag))


def other_taggers(tagged_by: Iterable[str], model: str) -> list[str]:
    """Return the models among `tagged_by` that are neither `model` nor one that it was trained from."""
    lineage = set(map(_place, _lineage(model)))
    return [name for name in tagged_by if _place(name) not in lineage]


def tags_of_another(tagged_by: Mapping[str, int], model: str) -> str | None:
    """Return one line about rows that another model tagged; None without any."""
    models = other_taggers(tagged_by, model)
    if not models:
        return None
    rows = sum(tagged_by[name] for name in models)
    names = ", ".join(models)
    return (
        f"{rows:,} row{'s were' if rows > 1 else ' was'} tagged with the habit of {names}, not of {model}: aligned "
        "and conflict are about that model; tag the rows again with d2e data tag"
    )


def _lineage(model: str) -> list[str]:
    """Return the model, the model that it was trained from, and so on."""
    lineage = [model]
    while True:
        try:
            recipe: Any = recipe_of(lineage[-1])
        except UserError:
            return lineage  # a recipe of another version
        if recipe is None or recipe.model.name in lineage:
            return lineage
        lineage.append(recipe.model.name)


def _place(name: str) -> str:
    return str(Path(name).resolve()) if Path(name).is_dir() else name

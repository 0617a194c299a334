"""The manifest of `d2e data build`, and whether a file of rows is as its build wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from d2e_sft.util.terminal import warn

MANIFEST = "manifest.json"
_ROWS = ("train.parquet", "dev.parquet", "test.parquet")


class _Part(BaseModel):
    """Base of the manifest's parts, which have more than their readers rely on."""

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
        what = f"has no {MANIFEST} of a build" if folder.is_dir() else "no such folder"
        raise UserError(
            f"{folder}: {what}; expected an output of `d2e data build`",
            remedy="name the folder that was given to `d2e data build --out`",
        )
    remedy = "restore it, or build the data again; rows of your own belong in a folder of their own"
    found = read_json_as(_Manifest, folder / MANIFEST, "the manifest of a build", remedy)
    return found.model_dump(exclude_unset=True)


def manifest_of(file: Path) -> dict[str, Any] | None:
    """Return the manifest next to a file that has the name of a build's rows; None for rows of anyone else.

    Errors are those of `read_manifest`.
    """
    is_built = file.name in _ROWS and (file.parent / MANIFEST).is_file()
    return read_manifest(file.parent) if is_built else None


def warn_if_changed(file: Path, sha256: str) -> None:
    """Warn if a file, whose checksum is now `sha256`, differs from the manifest of its build.

    Edited files are used, but results on them must not silently carry the old name. Errors are those of
    `read_manifest`.
    """
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

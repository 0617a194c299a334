"""The manifest of a build: what its readers ask of it, and its entries for files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from d2e_sft.data.built import read_manifest
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from data_builders.raw.source import RawFile

PROJECT = "d2e-sft"
EXPORT = "export"  # entry of a manifest next to pairs for other trainers
CHECKSUM_EQUAL = "equals the published file"
CHECKSUM_UNKNOWN = "no published checksum is known"
CHECKSUM_OWN = "own file"
CHECKSUM_DIFFERS = "differs from the published file"
REDISTRIBUTION_ALLOWED = "allowed by the licence"


def is_ours(out: Path, *, exported: bool = False) -> bool:
    """Return whether the folder has the manifest of a build, or of an export."""
    try:
        return (EXPORT in read_manifest(out)) == exported
    except UserError:
        return False


def rows_of(dataset: Mapping[str, Any]) -> int:
    """Return the number of rows in all splits of a dataset's entry."""
    return sum(int(split["rows_written"]) for split in dataset["splits"].values())


def restricted(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the datasets with rows that must not be republished, and why."""
    return {
        name: dataset["redistribution"]
        for name, dataset in manifest["datasets"].items()
        if rows_of(dataset) and dataset["redistribution"] != REDISTRIBUTION_ALLOWED
    }


def describe_outputs(paths: Iterable[Path]) -> dict[str, Any]:
    """Return size and checksum of each file by its name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(paths)}


def describe_file(file: RawFile, path: Path) -> dict[str, Any]:
    """Return one raw file's entry, with size and checksum of the bytes that were read."""
    digest = sha256_of(path)
    checksum = CHECKSUM_EQUAL if digest == file.sha256 else CHECKSUM_DIFFERS
    if file.own or not file.sha256:
        checksum = CHECKSUM_OWN if file.own else CHECKSUM_UNKNOWN
    return {
        "name": file.name,
        "url": file.url,
        "commit": file.commit,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "checksum": checksum,
        "substitute": file.substitute,
    }

"""What a model card says about the training data: the datasets and their licences, from the data's manifest.

A manifest lies beside the file that was trained on. It vouches for that file by its checksum; of any other file it
says nothing, and then the card says that nothing is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.data_record import DATA_FILE
from d2e_sft.util.files import sha256_of

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class TrainingDataset:
    """One source of the training rows.

    Attributes:
        rows: in the training split that the manifest describes.
        licence: of the raw data.
        redistribution: whether its rows may be published again.
    """

    name: str
    rows: int
    relations: tuple[str, ...]
    licence: str
    redistribution: str
    homepage: str


@dataclass(frozen=True)
class TrainingData:
    """The rows that a run was trained on.

    Attributes:
        file: its name, with the folder it lay in.
        samples: that batches were drawn from; None where the run does not say.
        rows: of the whole file; None where nobody says.
        datasets: empty where no manifest describes the file.
        unknown: why nothing is known about the licences; empty where something is.
    """

    file: str
    samples: int | None
    rows: int | None
    datasets: tuple[TrainingDataset, ...]
    unknown: str


def training_data(run: Path, recipe: Recipe) -> TrainingData:
    """What is known about a run's training data."""
    train = Path(recipe.data.train)
    holder = run.parent if run.name.startswith("checkpoint-") else run
    record = _json(holder / DATA_FILE) or {}
    source = record.get("source", {})
    sha256 = source.get("train_sha256") or (sha256_of(train) if train.is_file() else None)
    datasets, unknown = _described(train, sha256)
    return TrainingData(
        file="/".join(train.parts[-2:]),
        samples=record.get("samples"),
        rows=source.get("rows"),
        datasets=datasets,
        unknown=unknown,
    )


def _described(train: Path, sha256: str | None) -> tuple[tuple[TrainingDataset, ...], str]:
    manifest = _json(train.parent / MANIFEST_NAME)
    if manifest is None:
        return (), "no manifest lay beside the file"
    if sha256 is None or manifest.get("outputs", {}).get(train.name, {}).get("sha256") != sha256:
        return (), "the manifest beside the file describes other rows"
    split = train.stem
    entries = manifest.get("datasets", {}).items()
    found = tuple(_dataset(name, entry, split) for name, entry in entries if _rows(entry, split))
    return found, "" if found else "the manifest beside the file lists no rows of it"


def _dataset(name: str, entry: dict[str, Any], split: str) -> TrainingDataset:
    return TrainingDataset(
        name=name,
        rows=_rows(entry, split),
        relations=tuple(entry["splits"][split].get("rows_by_relation", {})),
        licence=entry.get("licence") or "unknown",
        redistribution=entry.get("redistribution") or "unknown",
        homepage=entry.get("homepage") or "",
    )


def _rows(entry: dict[str, Any], split: str) -> int:
    return int(entry.get("splits", {}).get(split, {}).get("rows_written", 0))


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None

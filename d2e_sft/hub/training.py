"""The training data in a model card: datasets and licences, from the manifest that lists the file's checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.built import manifest_of
from d2e_sft.train.data_record import data_file_of
from d2e_sft.util.files import sha256_of
from d2e_sft.util.markup import one_line
from d2e_sft.util.table import Table

_COLUMNS = ("dataset", "relations", "rows", "licence", "publishing its rows again")


@dataclass(frozen=True)
class TrainingData:
    """The rows that a run was trained on."""

    text: str  # Markdown, with a table of the datasets if they are known
    described: bool = False  # by a manifest
    relations: frozenset[str] = frozenset()
    chat: Mapping[str, Any] | None = None  # the description of the wording, if all rows are conversations


def training_data(run: Path, recipe: Recipe) -> TrainingData:
    """Return what is known about a run's training data."""
    train = Path(recipe.data.train)
    record = _json(data_file_of(run)) or {}
    source = record.get("source", {})
    sha256 = source.get("train_sha256") or (sha256_of(train) if train.is_file() else None)
    samples, rows = record.get("samples"), source.get("rows")
    count = "Samples" if samples is None else f"{samples:,} samples"
    of_rows = f" of {rows:,} rows" if samples is not None and rows not in (None, samples) else ""
    begin = f"{count}{of_rows} of `{'/'.join(train.parts[-2:])}`."
    manifest = manifest_of(train)
    entries = {}
    for name, entry in (manifest or {}).get("datasets", {}).items():
        split = entry.get("splits", {}).get(train.stem, {})
        if split.get("rows_written"):
            entries[name] = {**entry, **split}
    unknown = None
    if manifest is None:
        unknown = "no manifest of a build next to the file"
    elif sha256 is None or manifest.get("outputs", {}).get(train.name, {}).get("sha256") != sha256:
        unknown = "the manifest next to the file describes other rows"
    elif not entries:
        unknown = "the manifest next to the file lists none of its rows"
    if unknown:
        return TrainingData(f"{begin} Licences: unknown ({unknown}).")
    table = Table.of(_COLUMNS, [_cells(name, entry) for name, entry in entries.items()]).markdown(escape=False)
    text = f"{begin} The file's sources, with the licences of their raw data:\n\n{table}"
    relations = {name for entry in entries.values() for name in entry.get("rows_by_relation", {})}
    chats = [entry for entry in entries.values() if entry.get("format") == "chat"]
    chat = chats[0].get("described_by", {}).get("content", {}) if len(chats) == len(entries) else None
    return TrainingData(text, True, frozenset(relations), chat)


def _cells(name: str, entry: Mapping[str, Any]) -> list[str]:
    return [
        f"[{name}]({entry['homepage']})" if entry.get("homepage") else name,
        ", ".join(entry.get("rows_by_relation", {})),
        f"{entry['rows_written']:,}",
        one_line(entry.get("licence") or "unknown"),
        one_line(entry.get("redistribution") or "unknown"),
    ]


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None

"""What a model card says about the training data: the datasets and their licences, from the data's manifest.

A manifest lies beside the file that was trained on. It vouches for that file by its checksum; of any other file it
says nothing, and then the card says that nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.data_record import DATA_FILE
from d2e_sft.util.files import sha256_of
from d2e_sft.util.markup import one_line
from d2e_sft.util.table import Table

MANIFEST_NAME = "manifest.json"


_COLUMNS = ("dataset", "relations", "rows", "licence", "publishing its rows again")


@dataclass(frozen=True)
class TrainingData:
    """The rows that a run was trained on.

    Attributes:
        text: Markdown, with a table of the datasets where a manifest describes the file.
        described: whether one does, so that the licences are known.
        relations: of the file's rows, where they are known.
        chat: of rows that are all conversations: what their description says of the wording.
    """

    text: str
    described: bool
    relations: frozenset[str] = frozenset()
    chat: Mapping[str, Any] | None = None


def training_data(run: Path, recipe: Recipe) -> TrainingData:
    """What is known about a run's training data."""
    train = Path(recipe.data.train)
    holder = run.parent if run.name.startswith("checkpoint-") else run
    record = _json(holder / DATA_FILE) or {}
    source = record.get("source", {})
    sha256 = source.get("train_sha256") or (sha256_of(train) if train.is_file() else None)
    samples, rows = record.get("samples"), source.get("rows")
    count = "Samples" if samples is None else f"{samples:,} samples"
    if samples is not None and rows not in (None, samples):
        count += f" of {rows:,} rows"
    begin = f"{count} of `{'/'.join(train.parts[-2:])}`."
    datasets, unknown = _datasets(train, sha256)
    if unknown:
        return TrainingData(f"{begin} Licences: unknown ({unknown}).", described=False)
    table = Table.of(_COLUMNS, datasets).markdown(escape=False)
    text = f"{begin} The file's sources, with the licences of their raw data:\n\n{table}"
    entries = [entry for entry in _entries(train) if _rows(entry, train.stem)]
    relations = {name for entry in entries for name in entry["splits"][train.stem].get("rows_by_relation", {})}
    return TrainingData(text, True, frozenset(relations), _chat_wording(entries))


def _chat_wording(entries: Sequence[dict[str, Any]]) -> Mapping[str, Any] | None:
    """The wording of the first description where all datasets are conversations; None where one is not."""
    said = [entry.get("described_by", {}).get("content", {}) for entry in entries if entry.get("format") == "chat"]
    return said[0] if said and len(said) == len(entries) else None


def _entries(train: Path) -> list[dict[str, Any]]:
    """What the manifest beside the file says of each dataset."""
    return list((_json(train.parent / MANIFEST_NAME) or {}).get("datasets", {}).values())


def _datasets(train: Path, sha256: str | None) -> tuple[list[list[str]], str]:
    """The cells of each dataset that the manifest names, or why there are none."""
    manifest = _json(train.parent / MANIFEST_NAME)
    if manifest is None:
        return [], "no manifest lay beside the file"
    if sha256 is None or manifest.get("outputs", {}).get(train.name, {}).get("sha256") != sha256:
        return [], "the manifest beside the file describes other rows"
    split = train.stem
    entries = manifest.get("datasets", {}).items()
    found = [_cells(name, entry, split) for name, entry in entries if _rows(entry, split)]
    return found, "" if found else "the manifest beside the file lists no rows of it"


def _cells(name: str, entry: dict[str, Any], split: str) -> list[str]:
    homepage = entry.get("homepage")
    return [
        f"[{name}]({homepage})" if homepage else name,
        ", ".join(entry["splits"][split].get("rows_by_relation", {})),
        f"{_rows(entry, split):,}",
        one_line(entry.get("licence") or "unknown"),
        one_line(entry.get("redistribution") or "unknown"),
    ]


def _rows(entry: dict[str, Any], split: str) -> int:
    return int(entry.get("splits", {}).get(split, {}).get("rows_written", 0))


def _json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None

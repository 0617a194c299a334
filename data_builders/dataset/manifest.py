"""The manifest: which bytes, options and filters gave these files.

It holds no time stamp and no absolute path, so that the same inputs, options and seed give the same bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from d2e_sft import __version__
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from data_builders.raw.characters import DECODED
from data_builders.raw.source import RawFile, Samples, Source, SourceOptions

MANIFEST_NAME = "manifest.json"
_PROJECT = "d2e-sft"
CHECKSUM_EQUAL = "equals the published file"
CHECKSUM_UNKNOWN = "no published checksum is known"
CHECKSUM_OWN = "own file"
CHECKSUM_DIFFERS = "differs from the published file"
_REDISTRIBUTION_ALLOWED = "allowed by the licence"


def is_ours(out: Path) -> bool:
    """Whether the folder holds a manifest that an earlier build wrote."""
    try:
        content = json.loads((out / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("project") == _PROJECT


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a build.

    Raises:
        UserError: the folder holds none.
    """
    if not is_ours(folder):
        what = f"holds no {MANIFEST_NAME} of a build" if folder.is_dir() else "no such folder"
        raise UserError(
            f"{folder}: {what}; expected what `d2e data build` wrote",
            remedy="name the folder that was given to `d2e data build --out`",
        )
    content: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    return content


def rows_of(dataset: Mapping[str, Any]) -> int:
    """Rows that a dataset's entry has in all splits."""
    return sum(int(split["rows_written"]) for split in dataset["splits"].values())


def restricted(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The datasets in the result whose rows must not be published again, and why."""
    return {
        name: dataset["redistribution"]
        for name, dataset in manifest["datasets"].items()
        if rows_of(dataset) and dataset["redistribution"] != _REDISTRIBUTION_ALLOWED
    }


def describe_build(
    options: Mapping[str, Any], seed: int, datasets: Mapping[str, Any], **sections: Any
) -> dict[str, Any]:
    """The manifest but for its `outputs`, which are known once they are written.

    Args:
        options: what the user asked for.
        seed: of every draw.
        datasets: for each dataset what `describe_dataset` gave.
        sections: further parts, for example the mixture; those that are None or empty are left out.
    """
    return {
        "project": _PROJECT,
        "version": __version__,
        "seed": seed,
        "options": dict(options),
        **{name: section for name, section in sections.items() if section},
        "datasets": dict(datasets),
    }


def describe_outputs(paths: Iterable[Path]) -> dict[str, Any]:
    """Size and checksum of each file, by its name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(paths)}


def describe_dataset(
    source: Source, options: SourceOptions, files: list[dict[str, Any]], splits: dict[str, Any]
) -> dict[str, Any]:
    """One dataset's entry."""
    return {
        "licence": source.licence,
        "redistribution": source.redistribution or _REDISTRIBUTION_ALLOWED,
        "homepage": source.homepage,
        "format": source.format,
        "options": options.model_dump(),
        **(
            {"described_by": {"file": source.own.file.name, "content": dict(source.own.content)}} if source.own else {}
        ),
        "files": files,
        "splits": splits,
        "notes": dict(source.notes),
    }


def describe_file(file: RawFile, path: Path) -> dict[str, Any]:
    """One raw file's entry; size and checksum are those of the bytes that were read."""
    found = sha256_of(path)
    checksum = CHECKSUM_EQUAL if found == file.sha256 else CHECKSUM_DIFFERS
    if file.own or not file.sha256:
        checksum = CHECKSUM_OWN if file.own else CHECKSUM_UNKNOWN
    return {
        "name": file.name,
        "url": file.url,
        "commit": file.commit,
        "bytes": path.stat().st_size,
        "sha256": found,
        "checksum": checksum,
        "substitute": file.substitute,
    }


def describe_split(rows: Samples, bad_rows: int) -> dict[str, Any]:
    """One split's entry: counts (by subset too where rows say theirs), in how many rows what was decoded, filters,
    label balance and how much of the contexts the refiner kept."""
    samples = rows.rows
    labels = Counter(sample.answers[0] for sample in samples if sample.format == "nli")
    subsets = Counter(sample.subset for sample in samples if sample.subset)
    decoded = Counter(what for sample in samples for what in sample.meta.get(DECODED, ()))
    return {
        "rows_read": rows.rows_read,
        "bad_rows": bad_rows,
        "filters": [asdict(step) for step in rows.filters],
        "rows_written": len(samples),
        "rows_by_relation": dict(sorted(Counter(sample.relation for sample in samples).items())),
        **({"rows_by_subset": dict(sorted(subsets.items()))} if subsets else {}),
        **({"rows_decoded": dict(sorted(decoded.items()))} if decoded else {}),
        "nli_labels": dict(sorted(labels.items())),
        "refined_share_of_words": refined_share(samples),
    }


def refined_share(samples: Sequence[EventSample]) -> float | None:
    """Words of all refined contexts divided by words of all contexts, to three places; None without any word."""
    kept = sum(len(sample.refined_context.split()) for sample in samples if sample.refined_context is not None)
    words = sum(len(sample.context.split()) for sample in samples if sample.refined_context is not None)
    return round(kept / words, 3) if words else None


def write_manifest(manifest: Mapping[str, Any], folder: Path) -> Path:
    """Write `manifest.json`; keys keep their order, which is fixed."""
    path = folder / MANIFEST_NAME
    write_json(path, manifest)
    return path

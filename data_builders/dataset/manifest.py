"""The manifest: the raw files, options and filters that produced a build.

It has no time stamp and no absolute path, so the same inputs, options and seed give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from d2e_sft import __version__
from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from data_builders.raw.characters import DECODED
from data_builders.raw.source import RawFile, Samples, Source, SourceOptions
from data_builders.sources.reading import has_answer

PROJECT = "d2e-sft"
EXPORT = "export"  # entry of a manifest next to pairs for other trainers
CHECKSUM_EQUAL = "equals the published file"
CHECKSUM_UNKNOWN = "no published checksum is known"
CHECKSUM_OWN = "own file"
CHECKSUM_DIFFERS = "differs from the published file"
_REDISTRIBUTION_ALLOWED = "allowed by the licence"


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
        if rows_of(dataset) and dataset["redistribution"] != _REDISTRIBUTION_ALLOWED
    }


def describe_build(options: Mapping[str, Any], seed: int, datasets: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """Return the manifest without its `outputs`, which are added after writing; empty parts are left out."""
    return {
        "project": PROJECT,
        "version": __version__,
        "seed": seed,
        "options": dict(options),
        **{name: part for name, part in parts.items() if part},
        "datasets": dict(datasets),
    }


def describe_outputs(paths: Iterable[Path]) -> dict[str, Any]:
    """Return size and checksum of each file by its name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(paths)}


def describe_dataset(
    source: Source, options: SourceOptions, files: list[dict[str, Any]], splits: dict[str, Any]
) -> dict[str, Any]:
    """Return one dataset's entry."""
    return {
        "licence": source.licence,
        "redistribution": source.redistribution or _REDISTRIBUTION_ALLOWED,
        "homepage": source.homepage,
        "format": source.format,
        "options": options.model_dump(),
        **({"described_by": {"file": own.file.name, "content": dict(own.content)}} if (own := source.own) else {}),
        "files": files,
        "splits": splits,
        "notes": dict(source.notes),
    }


def describe_file(file: RawFile, path: Path) -> dict[str, Any]:
    """Return one raw file's entry, with size and checksum of the bytes that were read."""
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
    """Return one split's entry: counts of rows, subsets, decoded texts and labels, filters, refinement."""
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
        "rows_with_answer_in_context": sum(has_answer(row) for row in samples if row.format != "nli"),
        "nli_labels": dict(sorted(labels.items())),
        **describe_refinement(samples),
    }


def describe_refinement(samples: Sequence[EventSample]) -> dict[str, Any]:
    """Return what is left of the contexts, as the manifest has it; None without words in refined contexts.

    `refined_share_of_words` is the words of refined contexts divided by those of their contexts, to three places.
    `rows_refined_unchanged` counts refined contexts that equal the context: distillation teaches nothing there.
    """
    refined = [(sample.context, sample.refined_context) for sample in samples if sample.refined_context is not None]
    words, kept = (
        sum(len(text.split()) for text in texts) for texts in (list(zip(*refined, strict=True)) or ((), ()))
    )
    return {
        "refined_share_of_words": round(kept / words, 3) if words else None,
        "rows_refined_unchanged": sum(context == shorter for context, shorter in refined) if words else None,
    }

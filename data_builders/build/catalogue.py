"""What there is to build: each dataset with its licence, its files, its known sizes and the suites it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from data_builders.build.suites import SUITES, Suite
from data_builders.raw.download import cached_path
from data_builders.raw.source import RawFile, Source


def describe_source(source: Source) -> dict[str, Any]:
    """One dataset as plain values.

    Returns:
        `not_to_be_published` says why its rows may not be given on, None where they may; `raw_bytes` is None where a
        file's size is not published; `raw_in_cache` counts the official files that are in the cache; `test_rows` has
        the paper's count of its PIPER test rows by relation, `share_of_piper_10k` its per cent of the instruction set.
    """
    official = list(source.official)
    suites = [suite for suite in SUITES.values() if source.name in suite.datasets]
    return {
        "name": source.name,
        "format": source.format,
        "splits": list(source.splits),
        "licence": source.licence,
        "not_to_be_published": source.redistribution or None,
        "homepage": source.homepage,
        "raw_files": [file.name for file in official],
        "raw_bytes": sum(file.bytes for file in official) if all(file.bytes for file in official) else None,
        "raw_in_cache": sum(_is_cached(source, file) for file in official),
        "by_hand": [file.name for file in official if not file.url],
        "suites": [suite.name for suite in suites],
        "test_rows": _test_rows(source.name, suites),
        "share_of_piper_10k": SUITES["piper-10k"].ratios.get(source.name),
    }


def _is_cached(source: Source, file: RawFile) -> bool:
    return cached_path(source.raw_folder, file).is_file()


def _test_rows(name: str, suites: Iterable[Suite]) -> dict[str, int]:
    """Relation → published rows; rows that the paper counts for several datasets together are each one's."""
    return {row.relation: row.count for suite in suites for row in suite.published if name in suite.sources_of(row)}

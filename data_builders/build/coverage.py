"""Compare obtained with published counts of a suite, with the reason for every difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from d2e_sft.data.sample import EventSample
from data_builders.build.reading import Reading
from data_builders.build.suites import PublishedRow, Suite
from data_builders.dataset.manifest import CHECKSUM_DIFFERS, CHECKSUM_UNKNOWN


def compare(suite: Suite, reading: Reading, samples: Sequence[EventSample]) -> list[dict[str, Any]]:
    """Return the manifest's entry for each published count, in order: counts, why they differ, and remarks."""
    counts = Counter((sample.relation, sample.dataset, sample.format) for sample in samples)
    rows = []
    for published in suite.published:
        relation, dataset, fmt = published.relation, published.dataset, published.format
        obtained = counts[relation, dataset, fmt]
        reason = _reason(suite, reading, published) if obtained != published.count else ""
        comments = "; ".join(text for text in (reason, published.comment) if text)
        kind = {"relation": relation, "dataset": dataset, "format": fmt}
        rows.append({**kind, "published": published.count, "obtained": obtained, "reason": comments})
    return rows


def _reason(suite: Suite, reading: Reading, row: PublishedRow) -> str:
    causes = []
    for name in suite.sources_of(row):
        if name in reading.failures:
            causes.append(f"{name}: {reading.why(name)}")
            continue
        dataset = reading.datasets[name]
        own = dataset.substitutes(suite.split)
        defaults = dataset.source.options().model_dump()
        own += [
            f"option {name}.{key}={value} (default {defaults[key]})"
            for key, value in reading.settings.sources[name].model_dump().items()
            if value != defaults[key]
        ]
        own += [f"{file} {CHECKSUM_DIFFERS}" for file in dataset.changed_files]
        own += [
            f"{file['name']} has no published checksum, so it may be another version"
            for file in dataset.described_files
            if file["checksum"] == CHECKSUM_UNKNOWN and not file["substitute"]
        ]
        if bad := reading.bad.count(name, suite.split):
            own.append(f"{bad:,} bad rows put aside")
        if note := dataset.source.notes.get("count"):
            own.append(note)
        causes += [f"{name}: {cause}" if len(suite.sources_of(row)) > 1 else cause for cause in own]
    return "; ".join(causes) or "not known: the raw files and the options are the published ones"

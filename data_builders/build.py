"""Datasets to files: resolve the raw files, run the sources, refine, write Parquet and manifest.

Files are written only after every dataset is built, so bad input leaves the folder as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from d2e_sft.errors import UserError, did_you_mean
from d2e_sft.sample import BAD_ROWS_FILE, EventSample, write_bad_rows, write_samples
from data_builders import manifest
from data_builders.raw import BadRows
from data_builders.raw_files import find_files
from data_builders.refine import RefinerOptions, refine
from data_builders.settings import parse_settings
from data_builders.sources import SOURCES
from data_builders.sources.source import ALL_SPLITS, Job, Source, SplitRows


@dataclass(frozen=True)
class Options:
    """What to build.

    Attributes:
        datasets: names, in the order in which their rows are written.
        out: folder for the results.
        raw: folder with `<dataset>/<file>`; None downloads.
        seed: for every draw.
        skip_bad: put bad raw rows aside instead of stopping at the first.
        settings: `KEY=VALUE` texts such as `boxes.boxes=3` or `refine.threshold=0.5`.
    """

    datasets: Sequence[str]
    out: Path
    raw: Path | None = None
    seed: int = 0
    skip_bad: bool = False
    settings: Sequence[str] = ()


@dataclass
class Result:
    """What was built.

    Attributes:
        files: the files written, the manifest last.
        counts: (dataset, split, relation, format) → rows.
        splits: (dataset, split) → its rows, for the filters.
        bad_rows: number of bad rows put aside.
        warnings: one line each.
    """

    files: list[Path] = field(default_factory=list)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    splits: dict[tuple[str, str], SplitRows] = field(default_factory=dict)
    bad_rows: int = 0
    warnings: list[str] = field(default_factory=list)


def build(options: Options) -> Result:
    """Build the datasets into `options.out`: `<split>.parquet` for each split with rows, and `manifest.json`.

    Raises:
        UserError: an unknown dataset or setting, a missing or damaged raw file, or a bad row.
    """
    sources = pick_sources(options.datasets)
    settings = parse_settings(options.settings, sources)
    refiner = settings.refiner
    bad, result = BadRows(skip=options.skip_bad), Result()
    entries: dict[str, Any] = {}
    progress = tqdm(sources, desc="datasets", unit="dataset", disable=None, leave=False)
    for source in progress:
        progress.set_postfix_str(source.name)
        own = settings.sources[source.name]
        found = find_files(source, ALL_SPLITS, options.raw, settings.files.get(source.name))
        files = [manifest.describe_file(item.file, item.path) for item in found.values()]
        result.warnings += [
            f"{source.name}/{file['name']}: {manifest.CHECKSUM_DIFFERS}; counts may differ from the published ones"
            for file in files
            if file["checksum"] == manifest.CHECKSUM_DIFFERS
        ]
        splits = source.read(Job(source.name, found, options.seed, own, bad))
        for split, rows in splits.items():
            if not rows.samples and bad.count(source.name, split):
                raise UserError(
                    f"{source.name}, {split}: none of its rows is usable ({bad.count(source.name, split)} bad)",
                    remedy="its raw file is damaged or not what it should be; get it again",
                )
            rows.samples = [
                refine(sample, refiner) for sample in _with_progress(rows.samples, f"{source.name} {split}")
            ]
            result.splits[source.name, split] = rows
            result.counts.update((source.name, split, s.relation, s.format) for s in rows.samples)
        described: dict[str, Any] = {
            split: manifest.describe_split(rows, bad.count(source.name, split)) for split, rows in splits.items()
        }
        entries[source.name] = manifest.describe_dataset(source, own, files, described)
    _write(options, refiner, entries, bad, result)
    return result


def pick_sources(names: Iterable[str]) -> list[Source]:
    """The sources by name, each once.

    Raises:
        UserError: an unknown name, or no name.
    """
    sources = {}
    for name in names:
        if name not in SOURCES:
            raise UserError(
                f"unknown dataset {name!r}; expected some of {', '.join(SOURCES)}.{did_you_mean(name, SOURCES)}"
            )
        sources[name] = SOURCES[name]
    if not sources:
        raise UserError(f"no dataset named; expected some of {', '.join(SOURCES)}", remedy="pass --datasets")
    return list(sources.values())


def _with_progress(samples: list[EventSample], what: str) -> Iterable[EventSample]:
    return tqdm(samples, desc=what, unit="row", disable=None, leave=False)


def _write(options: Options, refiner: RefinerOptions, entries: dict[str, Any], bad: BadRows, result: Result) -> None:
    if not result.counts:
        raise UserError(
            f"no usable row in {', '.join(options.datasets)} ({len(bad.entries)} bad); nothing was written",
            remedy="run without --skip-bad to see the first bad row",
        )
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{options.out}: cannot be made ({error.strerror}); expected a folder for the results"
        ) from None
    for split in manifest.SPLITS:
        samples = [s for (_, name), rows in result.splits.items() if name == split for s in rows.samples]
        if samples:
            result.files.append(options.out / f"{split}.parquet")
            write_samples(samples, result.files[-1])
    if bad.entries:
        result.files.append(options.out / BAD_ROWS_FILE)
        write_bad_rows(bad.entries, result.files[-1])
    result.bad_rows = len(bad.entries)
    _remove_leftovers(options.out, {path.name for path in result.files})
    described = manifest.describe_build(options.seed, options.skip_bad, refiner.model_dump(), entries, result.files)
    result.files.append(manifest.write_manifest(described, options.out))


def _remove_leftovers(out: Path, written: set[str]) -> None:
    """Remove what an earlier build into the same folder wrote and this one did not: it would look like a result."""
    if manifest.is_ours(out):
        for name in {*(f"{split}.parquet" for split in manifest.SPLITS), BAD_ROWS_FILE} - written:
            (out / name).unlink(missing_ok=True)

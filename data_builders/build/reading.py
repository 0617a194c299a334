"""Read raw files to samples, dataset by dataset; one that fails does not stop the others."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.data.bad_rows import BadRow
from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.progress import Progress
from d2e_sft.util.terminal import warn
from data_builders.build.mixture import HOW_TO_FILL, allot
from data_builders.build.options import REFINE, SWAP, BuildOptions, Settings, parse_settings
from data_builders.build.suites import SUITES
from data_builders.dataset import manifest
from data_builders.own_data.source import how_to_describe, own_source
from data_builders.raw.files import Missing, MissingRawFileError, describe_substitutes, find_files, locate_files
from data_builders.raw.reader import BadRows
from data_builders.raw.source import FoundFile, Job, Samples, Source
from data_builders.sources import SOURCES
from data_builders.sources.reading import read_source


@dataclass(frozen=True)
class ReadDataset:
    """One dataset with the splits that were read."""

    source: Source
    files: Mapping[str, FoundFile]
    described_files: list[dict[str, Any]]
    splits: dict[Split, Samples]

    @property
    def changed_files(self) -> list[str]:
        """Names of the files that differ from the published ones."""
        return [file["name"] for file in self.described_files if file["checksum"] == manifest.CHECKSUM_DIFFERS]

    def substitutes(self, split: Split) -> list[str]:
        """Return a line for each file that replaces official ones of the split, with how it differs."""
        return describe_substitutes(self.source, self.files, split)


@dataclass
class Reading:
    """All datasets that could be read, and the errors of the others.

    Attributes:
        settings: Options of the datasets and of the refiner.
        folders: The user's folders of raw files; the manifest must not name them.
        missing: Inputs whose files are known to be missing; they are not downloaded again.
        failures: Dataset → its first error, damaged raw files before missing ones.
        lost: Dataset → splits that could not be read, if others could.
    """

    settings: Settings
    bad: BadRows
    folders: list[Path] = field(default_factory=list)
    missing: Missing = field(default_factory=dict)
    datasets: dict[str, ReadDataset] = field(default_factory=dict)
    failures: dict[str, UserError] = field(default_factory=dict)
    lost: dict[str, list[Split]] = field(default_factory=dict)

    def require_no_damage(self) -> None:
        """Raise the first error that is not about a missing file."""
        for error in self.failures.values():
            if not isinstance(error, MissingRawFileError):
                raise error

    def what_lacks(self, name: str) -> str:
        """Return the dataset's name, with the lost splits if others could be read."""
        return " ".join([name, *self.lost.get(name, [])]) if name in self.datasets else name

    def why(self, name: str) -> str:
        """Return a dataset's error in one line, without the user's own folder, for a table or the manifest."""
        first = self.failures[name].message.splitlines()[0]
        for folder in self.folders:
            first = first.replace(f"{folder}/", "")
        return first

    def warnings(self) -> list[str]:
        """Return one line for each file that differs from the published one."""
        return [
            f"{name}/{file}: {manifest.CHECKSUM_DIFFERS}; counts may differ from the published ones"
            for name, dataset in self.datasets.items()
            for file in dataset.changed_files
        ]


def read_datasets(options: BuildOptions, splits: Collection[Split], missing: Missing | None = None) -> Reading:
    """Read the wanted splits of each dataset that has any of them.

    If a file of one split is missing or damaged, the dataset's other splits are still read. `missing` is what
    `report_missing_files` returned.

    Raises:
        UserError: an unknown dataset or setting, or no dataset could be read: the first damage, or all missing files.
    """
    sources = pick_sources(options.datasets)
    folders = [source.own.file.parent for source in sources if source.own]
    reading = Reading(
        parse_settings(options.settings, sources),
        BadRows(skip=options.skip_bad),
        [options.raw, *folders] if options.raw else folders,
        missing or {},
    )
    progress = Progress(sources, desc="datasets", unit="dataset")
    for source in progress:
        progress.set_postfix_str(source.name)
        wanted = [split for split in source.splits if split in splits]
        if not wanted:
            continue
        try:
            reading.datasets[source.name] = _read(source, wanted, options, reading)
        except UserError as error:
            reading.failures[source.name] = error
            if len(wanted) > 1:
                _read_split_by_split(source, wanted, options, reading)
    by_kind = sorted(reading.failures.items(), key=lambda item: isinstance(item[1], MissingRawFileError))
    reading.failures = dict(by_kind)
    if reading.failures and not reading.datasets:
        reading.require_no_damage()
        raise MissingRawFileError.of(list(reading.failures.values()))
    return reading


def report_missing_files(options: BuildOptions, splits: Collection[Split]) -> Missing:
    """Find or download all raw files, also those of benchmarks, and report those that are missing or replaced at once.

    Returns the errors of what is missing.

    Raises:
        UserError: as for `read_datasets`; or a set in fixed ratios lacks a dataset, and `allow_shortfall` is off.
    """
    sources, suite = pick_sources(options.datasets), options.suite
    chosen = parse_settings(options.settings, sources).files
    located = {
        source.name: locate_files(source, set(splits) & set(source.splits), options.raw, chosen.get(source.name))
        for source in sources
    }
    benchmarks = [name for other in (suite.disjoint_from if suite else ()) for name in SUITES[other].datasets]
    tests = [locate_files(SOURCES[name], ["test"], options.raw) for name in dict.fromkeys(benchmarks)]
    missing = {key: error for found in (*located.values(), *tests) for key, error in found.missing.items()}
    errors = list(missing.values())
    count = "1 raw file is missing" if len(errors) == 1 else f"{len(errors)} raw files are missing"
    replaced = [
        f"{source.name}: {line}"
        for source in sources
        if suite
        for line in describe_substitutes(source, located[source.name].files, suite.split)
    ]
    if suite and suite.ratios and not options.allow_shortfall:
        quotas = allot(options.size or suite.size or 0, suite.ratios, {})
        if needed := [name for name, found in located.items() if found.missing and quotas[name]]:
            wanted = ", ".join(f"{quotas[name]:,} rows of {name}" for name in needed)
            lines = [f"{count}, and {suite.name} wants {wanted}:", *map(str, errors), *replaced]
            raise UserError("\n".join(lines), HOW_TO_FILL)
    lines = [*(line for error in errors for line in str(error).splitlines()), *replaced]
    # Where no dataset has all its files, the error at the end names them.
    if len(sources) > 1 and lines and not all(found.missing for found in located.values()):
        head = f"{count}; the other rows are built" if errors else "official raw files are replaced"
        warn("\n".join([head, *(f"  {line}" for line in lines)]))
    return missing


def pick_sources(names: Iterable[str]) -> list[Source]:
    """Return the sources by name, or by the file that describes own data; each once.

    Raises:
        UserError: an unknown name, no name, a wrong description, or own data with the name of another dataset.
    """
    sources: dict[str, Source] = {}
    for name in names:
        source = own_source(name) or SOURCES.get(name)
        if source is None and os.sep in name:
            raise UserError(
                f"{name}: no such file or folder", remedy="build it with d2e data build, or name a dataset"
            )
        if source is None:
            raise UserError(
                f"unknown dataset {name!r}; expected some of {', '.join(SOURCES)}, or a .yaml file that describes own "
                f"data.{did_you_mean(name, SOURCES)}",
                remedy=how_to_describe(name),
            )
        own, other = source.own, sources.get(source.name, source).own
        # Tables of scores have rows `all` and `average`, and options have the prefixes `refine` and `swap`.
        if own and (
            source.name in (*SOURCES, REFINE, SWAP, "all", "average")
            or (other and other.file.resolve() != own.file.resolve())
        ):
            remedy = "add a line such as `name: mine`"
            raise UserError(f"{name}: its name is {source.name!r}, which is already taken", remedy)
        sources[source.name] = source
    if not sources:
        raise UserError(f"no dataset named; expected some of {', '.join(SOURCES)}", remedy="pass --datasets")
    return list(sources.values())


def _read_split_by_split(source: Source, wanted: Sequence[Split], options: BuildOptions, reading: Reading) -> None:
    parts: list[ReadDataset] = []
    for split in wanted:
        try:
            parts.append(_read(source, [split], options, reading))
        except UserError:
            reading.lost.setdefault(source.name, []).append(split)
    if parts:
        described = {file["name"]: file for part in parts for file in part.described_files}
        reading.datasets[source.name] = ReadDataset(
            source,
            {key: found for part in parts for key, found in part.files.items()},
            list(described.values()),
            {split: rows for part in parts for split, rows in part.splits.items()},
        )


def _read(source: Source, splits: Sequence[Split], options: BuildOptions, reading: Reading) -> ReadDataset:
    settings = reading.settings
    files = find_files(source, splits, options.raw, settings.files.get(source.name), reading.missing)
    different = {found.file: found.path for found in files.values()}  # one file may replace several
    described = [manifest.describe_file(file, path) for file, path in different.items()]
    bad = BadRows(skip=options.skip_bad)
    job = Job(source, files, options.seed, settings.sources[source.name], bad, splits)
    rows = {split: found for split, found in read_source(job).items() if split in splits}
    for split, found in rows.items():
        if not found.rows and bad.count(source.name, split):
            raise UserError(
                f"{source.name}, {split}: none of its rows is usable ({bad.count(source.name, split)} bad)",
                remedy="run without --skip-bad to see the first of them, or download the raw file again",
            )
    # A file that two splits need may have been read before.
    known = {_place(entry) for entry in reading.bad.entries}
    reading.bad.entries += [entry for entry in bad.entries if _place(entry) not in known]
    return ReadDataset(source, files, described, rows)


def _place(entry: BadRow) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("file", "line", "item", "error"))

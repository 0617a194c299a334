"""Find and read raw files, dataset by dataset; one that fails does not stop the others."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import BadRow, Split
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.progress import Progress
from data_builders.build.options import REFINE, SWAP, BuildOptions, Settings, parse_settings
from data_builders.dataset import CHECKSUM_DIFFERS, describe_file
from data_builders.own_data.source import how_to_describe, own_source
from data_builders.raw.files import Located, MissingRawFileError, locate_files
from data_builders.raw.reader import BadRows
from data_builders.raw.source import Job, Samples, Source
from data_builders.sources import SOURCES
from data_builders.sources.reading import read_source


@dataclass(frozen=True)
class ReadDataset:
    source: Source
    located: Located
    described_files: list[dict[str, Any]]
    splits: dict[Split, Samples]

    @property
    def changed_files(self) -> list[str]:
        """Names of the files that differ from the published ones."""
        return [file["name"] for file in self.described_files if file["checksum"] == CHECKSUM_DIFFERS]


@dataclass
class Reading:
    """All datasets that could be read, and the errors of the others.

    Attributes:
        folders: The user's folders of raw files; the manifest must not name them.
        failures: Dataset → its first error, damaged raw files before missing ones.
        lost: Dataset → splits that could not be read, if others could.
    """

    settings: Settings
    bad: BadRows
    folders: list[Path]
    datasets: dict[str, ReadDataset] = field(default_factory=dict)
    failures: dict[str, UserError] = field(default_factory=dict)
    lost: dict[str, list[Split]] = field(default_factory=dict)

    @property
    def own(self) -> set[str]:
        """Names of the user's own datasets."""
        return {name for name, dataset in self.datasets.items() if dataset.source.own}

    @property
    def trains(self) -> list[Samples]:
        """The training split of each dataset that has one."""
        return [dataset.splits["train"] for dataset in self.datasets.values() if "train" in dataset.splits]

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
            f"{name}/{file}: {CHECKSUM_DIFFERS}; counts may differ from the published ones"
            for name, dataset in self.datasets.items()
            for file in dataset.changed_files
        ]


def locate(options: BuildOptions, sources: Iterable[Source], splits: Collection[Split]) -> dict[str, Located]:
    """Find or download the files of all sources, by name; UserError for a wrong setting or a missing folder."""
    sources = list(sources)
    chosen = parse_settings(options.settings, sources).files
    return {
        source.name: locate_files(source, set(splits) & set(source.splits), options.raw, chosen.get(source.name))
        for source in sources
    }


def read_datasets(
    options: BuildOptions, splits: Collection[Split], located: Mapping[str, Located] | None = None
) -> Reading:
    """Read the wanted splits of each dataset that has any of them.

    If a file of one split is missing or damaged, the dataset's other splits are still read. `located` is what `locate`
    returned, if it was called before.

    Raises:
        UserError: an unknown dataset or setting, or no dataset could be read: the first damage, or all missing files.
    """
    sources = pick_sources(options.datasets)
    located = locate(options, sources, splits) if located is None else located
    folders = [source.own.file.parent for source in sources if source.own]
    folders = [options.raw, *folders] if options.raw else folders
    reading = Reading(parse_settings(options.settings, sources), BadRows(skip=options.skip_bad), folders)
    progress = Progress(sources, desc="datasets", unit="dataset")
    for source in progress:
        progress.set_postfix_str(source.name)
        chosen = [split for split in source.splits if split in splits]
        if not chosen:
            continue
        try:
            reading.datasets[source.name] = _read(located[source.name], chosen, options, reading)
        except UserError as error:
            reading.failures[source.name] = error
            if len(chosen) > 1:
                _read_split_by_split(located[source.name], chosen, options, reading)
    by_kind = sorted(reading.failures.items(), key=lambda item: isinstance(item[1], MissingRawFileError))
    reading.failures = dict(by_kind)
    if reading.failures and not reading.datasets:
        reading.require_no_damage()
        raise MissingRawFileError.of(list(reading.failures.values()))
    return reading


def pick_sources(names: Iterable[str]) -> list[Source]:
    """Return the sources by name, or by the file that describes own data; each once. UserError if one is unusable."""
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
        spec, earlier = source.own, sources.get(source.name, source).own
        # Tables of scores have rows `all` and `average`, and options have the prefixes `refine` and `swap`.
        if spec and (
            source.name in (*SOURCES, REFINE, SWAP, "all", "average")
            or (earlier and earlier.file.resolve() != spec.file.resolve())
        ):
            remedy = "add a line such as `name: mine`"
            raise UserError(f"{name}: its name is {source.name!r}, which is already taken", remedy)
        sources[source.name] = source
    if not sources:
        raise UserError(f"no dataset named; expected some of {', '.join(SOURCES)}", remedy="pass --datasets")
    return list(sources.values())


def _read_split_by_split(located: Located, splits: Sequence[Split], options: BuildOptions, reading: Reading) -> None:
    name, parts = located.source.name, list[ReadDataset]()
    for split in splits:
        try:
            parts.append(_read(located, [split], options, reading))
        except UserError:
            reading.lost.setdefault(name, []).append(split)
    if parts:
        described = {file["name"]: file for part in parts for file in part.described_files}
        rows = {split: rows for part in parts for split, rows in part.splits.items()}
        reading.datasets[name] = ReadDataset(located.source, located, list(described.values()), rows)


def _read(located: Located, splits: Sequence[Split], options: BuildOptions, reading: Reading) -> ReadDataset:
    source, files, bad = located.source, located.of(splits), BadRows(skip=options.skip_bad)
    different = {part.file: part.path for part in files.values()}  # one file may replace several
    described = [describe_file(file, path) for file, path in different.items()]
    job = Job(source, files, options.seed, reading.settings.sources[source.name], bad, splits)
    rows = {split: part for split, part in read_source(job).items() if split in splits}
    for split, part in rows.items():
        if not part.rows and bad.count(source.name, split):
            raise UserError(
                f"{source.name}, {split}: none of its rows is usable ({bad.count(source.name, split)} bad)",
                remedy="run without --skip-bad to see the first of them, or download the raw file again",
            )
    # A file that two splits need may have been read before.
    known = {_place(entry) for entry in reading.bad.entries}
    reading.bad.entries += [entry for entry in bad.entries if _place(entry) not in known]
    return ReadDataset(source, located, described, rows)


def _place(entry: BadRow) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("file", "line", "item", "error"))

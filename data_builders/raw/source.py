"""What a source is: its official files, its licence, its options, and a function from raw files to samples.

A source never looks for files itself. `build` resolves each file (from `--raw`, or downloaded and checked) and
hands the paths over in a `Job`; so a source is a plain function that is easy to run on a fixture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from d2e_sft.data.sample import EventSample, Format, Split
from data_builders.raw.reader import BadRows, RawInput

RowT = TypeVar("RowT")
Other = TypeVar("Other")

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class SourceOptions(BaseModel):
    """Options of a source that has none; a source with options derives its own model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class RawFile:
    """One raw file.

    Attributes:
        name: path inside the dataset's folder, in `--raw` and in the cache.
        url: where it is published, at a fixed commit where there is one; empty where it cannot be downloaded.
        commit: that commit, or another name of the version; empty where none is known.
        sha256: checksum of the published bytes; empty where none is known.
        bytes: their number; 0 where unknown.
        member: path of the file inside the archive (zip or tar) that `url` gives; empty where `url` gives the file.
        by_hand: the steps to get it where it cannot be downloaded (registration, no public address); needed where
            `url` is empty and the file is not `own`.
        substitute: for a file that stands in for an official one: what differs, in one clause; else empty.
        own: for a user's own file where it lies on this machine; None for published ones.
    """

    name: str
    url: str = ""
    commit: str = ""
    sha256: str = ""
    bytes: int = 0
    member: str = ""
    by_hand: str = ""
    substitute: str = ""
    own: Path | None = None

    def __post_init__(self) -> None:
        if not (self.url or self.by_hand or self.own):
            raise ValueError(f"{self.name}: a raw file needs `url`, `by_hand` or `own`, else nobody can get it")


@dataclass(frozen=True)
class Release:
    """One published version of a dataset: the address of its files without their names, and its commit or name."""

    url: str
    commit: str

    def file(
        self, name: str, sha256: str = "", size: int = 0, *, path: str = "", member: str = "", substitute: str = ""
    ) -> RawFile:
        """A file of the release; `path` is its own there, or that of its archive, where that is not the name."""
        return RawFile(name, f"{self.url}/{path or name}", self.commit, sha256, size, member, substitute=substitute)


def github(repository: str, commit: str, folder: str = "") -> Release:
    """The files of a folder of a GitHub repository at a commit."""
    return Release("/".join(filter(None, ("https://raw.githubusercontent.com", repository, commit, folder))), commit)


@dataclass(frozen=True)
class Input:
    """What a source reads for some splits: one file, of which there may be several forms.

    Attributes:
        key: the name under which the source asks for it; `KEY_file` is its option on the command line.
        candidates: the forms, the official one first. With `--raw` the first that is there is read, without it
            the first that can be downloaded.
        splits: the splits that cannot be built without it.
    """

    key: str
    candidates: tuple[RawFile, ...]
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class FilterStep:
    """One filter's effect on one split; `unit` says what is counted (rows, questions, triplets, …)."""

    name: str
    reason: str
    rows_in: int
    rows_out: int
    unit: str = "rows"


@dataclass
class SplitRows(Generic[RowT]):
    """The rows of one split on their way from raw rows to samples, and what was left out on the way.

    Attributes:
        rows_read: raw rows that could be read, before any filter; by default as many as there are.
        filters: in the order in which they were applied.
    """

    rows: Sequence[RowT]
    rows_read: int = -1
    filters: list[FilterStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.rows_read < 0:
            self.rows_read = len(self.rows)

    def keep(self, name: str, reason: str, rows: Sequence[RowT], unit: str = "rows") -> None:
        """Leave out all rows but these: no row is left out but by a named filter, with counts and a reason."""
        self.filters.append(FilterStep(name, reason, len(self.rows), len(rows), unit))
        self.rows = rows

    def become(self, rows: Sequence[Other]) -> SplitRows[Other]:
        """The same split with what its rows were made into, for example samples."""
        return SplitRows(rows, self.rows_read, self.filters)


Samples = SplitRows[EventSample]


@dataclass(frozen=True)
class FoundFile:
    """A raw file and where it lies on this machine."""

    file: RawFile
    path: Path


@dataclass(frozen=True)
class OwnData:
    """What says that a source is a user's own data.

    Attributes:
        file: the file that describes it.
        content: what it says, for the manifest.
    """

    file: Path
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A dataset that can be built.

    Attributes:
        name: as in `--datasets` and in EventSample.dataset.
        format: the format of its samples.
        licence: of the raw data, as the publisher states it.
        homepage: the repository of the raw data.
        inputs: the raw files; empty for generated data.
        read: raw files to the rows of each split that is wanted.
        options: the model of its options.
        notes: what a reader of the manifest must know, by topic.
        folder: the dataset's folder in `--raw`, where it is not the name.
        redistribution: why the rows must not be published again, in one clause; empty where the licence allows it.
        splits: the splits it can give.
        others: official files that no split needs, but a benchmark of its own does.
        own: for a user's own data the description of it; None for published datasets.
    """

    name: str
    format: Format
    licence: str
    homepage: str
    inputs: tuple[Input, ...]
    read: Callable[[Job], dict[Split, Samples]]
    options: type[SourceOptions] = SourceOptions
    notes: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    redistribution: str = ""
    splits: tuple[Split, ...] = ("train", "test")
    others: tuple[RawFile, ...] = ()
    own: OwnData | None = None

    @property
    def official(self) -> tuple[RawFile, ...]:
        """All its official files, each input in its first form."""
        return (*(item.candidates[0] for item in self.inputs), *self.others)

    @property
    def raw_folder(self) -> str:
        return self.folder or self.name

    @property
    def short_licence(self) -> str:
        """The licence without the remark in brackets."""
        return self.licence if self.own else self.licence.split(" (")[0]


@dataclass(frozen=True)
class Job:
    """One build of one source.

    Attributes:
        files: the found file of each input, by the input's key; an input that no wanted split needs is absent.
        splits: the splits that are wanted; a source may give others too, which are then not used.
    """

    source: Source
    files: Mapping[str, FoundFile]
    seed: int
    options: SourceOptions
    bad: BadRows
    splits: Collection[Split] = SPLITS

    def wants(self, split: Split) -> bool:
        return split in self.splits

    def file(self, key: str) -> RawFile:
        """Which of an input's candidates is read."""
        return self.files[key].file

    def input(self, key: str, split: Split | None = None) -> RawInput:
        """The raw file of the input `key`, read for `split`; None where the key is the split's name."""
        found, source = self.files[key], self.source
        return RawInput(
            source.name,
            split or cast(Split, key),
            found.file.name,
            found.path,
            self.bad,
            format=source.format,
            licence=source.short_licence,
            folder=source.folder,
            own_spec=source.own.file.name if source.own else "",
        )

    def random(self, purpose: str) -> random.Random:
        """A generator that depends on seed, dataset and purpose only, not on what else is built."""
        return random.Random(f"{self.seed}/{self.source.name}/{purpose}")

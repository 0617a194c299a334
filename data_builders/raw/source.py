"""A source: official files, licence, options, and a function from raw files to samples.

`build` finds or downloads the files and passes their paths in a `Job`, so a source is easy to run on a fixture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict

from d2e_sft.data.sample import EventSample, Format, Split
from d2e_sft.util.files import load_package_yaml
from data_builders.raw.reader import BadRows, RawInput

RowT = TypeVar("RowT")
Other = TypeVar("Other")

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
MOST_SAMPLES = 1_000_000  # to generate for a split and subset; all are in memory, a few kilobytes each


class SourceOptions(BaseModel):
    """Options of every source; a source with more, or with another default, derives its own model.

    `answer_in_context` leaves out rows whose context has none of the accepted answers, in any letter case.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    answer_in_context: bool = False


@dataclass(frozen=True)
class RawFile:
    """One raw file.

    Attributes:
        name: Path inside the dataset's folder, in `--raw` and in the cache.
        url: At a fixed commit if possible; empty if it cannot be downloaded.
        commit: That commit, or another name of the version; empty if unknown.
        sha256, bytes: Those of the published file; empty and 0 if unknown.
        member: Path of the file inside the archive (zip or tar) at `url`; empty if `url` is the file.
        by_hand: Steps to get a file that cannot be downloaded (registration, no public address).
        substitute: How the file differs from the official one that it replaces, in one clause; else empty.
        own: Path of a user's own file; None for published ones.
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


@dataclass(frozen=True)
class Input:
    """A file that a source reads for some splits; there may be several forms of it.

    Attributes:
        key: its name for the source; `KEY_file` is its option on the command line.
        candidates: the forms, the official one first. The first that exists in `--raw` is read, or without `--raw` the
            first that can be downloaded.
    """

    key: str
    candidates: tuple[RawFile, ...]
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class FilterStep:
    """Effect of one filter on one split; `unit` is what is counted (rows, questions, triplets, …)."""

    name: str
    reason: str
    rows_in: int
    rows_out: int
    unit: str = "rows"


@dataclass
class SplitRows(Generic[RowT]):
    """The rows of one split between raw rows and samples, with the filters applied so far, in order.

    `rows_read` counts the readable raw rows before any filter; by default all rows. `rewritten` counts cells of own
    data whose text is not the file's, by column and kind (`cells.py`).
    """

    rows: Sequence[RowT]
    rows_read: int = -1
    filters: list[FilterStep] = field(default_factory=list)
    rewritten: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows_read < 0:
            self.rows_read = len(self.rows)

    def keep(self, name: str, reason: str, rows: Sequence[RowT], unit: str = "rows") -> None:
        """Keep only these rows, and record the filter with its counts and a reason."""
        self.filters.append(FilterStep(name, reason, len(self.rows), len(rows), unit))
        self.rows = rows

    def become(self, rows: Sequence[Other]) -> SplitRows[Other]:
        """Return the same split with the rows converted, for example to samples."""
        return SplitRows(rows, self.rows_read, self.filters)


Samples = SplitRows[EventSample]
SplitSamples = dict[Split, Samples]


@dataclass(frozen=True)
class FoundFile:
    file: RawFile
    path: Path


@dataclass(frozen=True)
class OwnData:
    """The description of a user's own data: its file, and its keys and values for the manifest."""

    file: Path
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A dataset that can be built.

    Attributes:
        name: Name in `--datasets` and in `EventSample.dataset`.
        licence: Licence of the raw data, as the publisher states it.
        inputs: Raw files; empty for generated data.
        notes: Remarks for readers of the manifest, by topic.
        folder: The dataset's folder in `--raw`, if it differs from the name.
        redistribution: Why the rows must not be republished, in one clause; empty if the licence allows it.
        others: Official files that no split needs, but the dataset's own benchmark does.
        prompt, system: Wording of chat rows; see `prompt_turns`.
        own: Description of a user's own data; None for published datasets.
    """

    name: str
    format: Format
    licence: str
    homepage: str
    inputs: tuple[Input, ...]
    read: Callable[[Job], SplitSamples]
    options: type[SourceOptions] = SourceOptions
    notes: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    redistribution: str = ""
    splits: tuple[Split, ...] = ("train", "test")
    others: tuple[RawFile, ...] = ()
    prompt: str = ""
    system: str = ""
    own: OwnData | None = None

    @property
    def official(self) -> tuple[RawFile, ...]:
        """All official files, the first candidate of each input."""
        return (*(item.candidates[0] for item in self.inputs), *self.others)

    @property
    def raw_folder(self) -> str:
        return self.folder or self.name

    @property
    def short_licence(self) -> str:
        """The licence without the remark in brackets, as samples record it."""
        return self.licence if self.own else self.licence.split(" (")[0]


@dataclass(frozen=True)
class Job:
    """One build of one source, with the file of each needed input by its key.

    A source may return other splits than the wanted ones, which are ignored.
    """

    source: Source
    files: Mapping[str, FoundFile]
    seed: int
    options: Any  # an instance of `source.options`
    bad: BadRows
    splits: Collection[Split] = SPLITS

    def wants(self, split: Split) -> bool:
        return split in self.splits

    def file(self, key: str) -> RawFile:
        """Return the candidate of an input that is read."""
        return self.files[key].file

    def input(self, key: str, split: Split | None = None) -> RawInput:
        """Return the raw file of the input `key`, to be read for `split` (by default the split of that name)."""
        located, source = self.files[key], self.source
        return RawInput(
            source.name,
            split or cast(Split, key),
            located.file.name,
            located.path,
            self.bad,
            format=source.format,
            wording=(source.prompt, source.system),
            licence=source.short_licence,
            folder=source.folder,
            own_spec=source.own.file.name if source.own else "",
        )

    def random(self, purpose: str) -> random.Random:
        """Return a generator that depends only on seed, dataset and purpose."""
        return random.Random(f"{self.seed}/{self.source.name}/{purpose}")


def source(
    module: str | Path, read: Callable[[Job], SplitSamples], options: type[SourceOptions] = SourceOptions
) -> Source:
    """Return a source with the facts of a YAML file, by default the one that has the module's name.

    The keys of the file are those of `Source`. Each of `inputs` has a `key`, `splits` and candidate `files`, with the
    keys of `RawFile`. A `url` is relative to `base` and may be left out if it equals the name. `commit` applies to
    relative addresses.
    """
    path = Path(module).with_suffix(".yaml")
    facts = load_package_yaml(path)
    base, commit = facts.pop("base", ""), facts.pop("commit", "")
    inputs = [
        Input(item["key"], tuple(_file(entry, base, commit) for entry in item["files"]), tuple(item["splits"]))
        for item in facts.pop("inputs", ())
    ]
    others = tuple(_file(entry, base, commit) for entry in facts.pop("others", ()))
    splits = tuple(facts.pop("splits", ("train", "test")))
    return Source(path.stem, inputs=tuple(inputs), read=read, options=options, splits=splits, others=others, **facts)


def _file(entry: dict[str, Any], base: str, commit: str) -> RawFile:
    url = entry.get("url", "" if "by_hand" in entry else entry["name"])
    if url and "://" not in url:
        entry = {"commit": commit, **entry, "url": f"{base}/{url}"}
    return RawFile(**entry)

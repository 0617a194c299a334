"""What a source is: its official files, its licence, its options, and a function from raw files to samples.

A source never looks for files itself. `build` resolves each file (from `--raw`, or downloaded and checked) and
hands the paths over in a `Job`; so a source is a plain function that is easy to run on a fixture.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from d2e_sft.sample import EventSample, Format, Split
from data_builders.filters import FilterLog
from data_builders.raw import BadRows, RawInput


class SourceOptions(BaseModel):
    """Options of a source that has none; a source with options derives its own model."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class RawFile:
    """One official file.

    Attributes:
        name: path inside the dataset's folder, in `--raw` and in the cache.
        url: where it is published, at a fixed commit.
        commit: that commit.
        sha256: checksum of the published bytes.
        bytes: their number.
    """

    name: str
    url: str
    commit: str
    sha256: str
    bytes: int


@dataclass
class SplitRows:
    """The samples of one split and how the raw rows became them.

    Attributes:
        rows_read: raw rows that could be read, before any filter.
    """

    samples: list[EventSample]
    rows_read: int
    filters: FilterLog = field(default_factory=FilterLog)


@dataclass(frozen=True)
class Job:
    """One build of one source."""

    dataset: str
    paths: Mapping[str, Path]
    seed: int
    options: SourceOptions
    bad: BadRows

    def input(self, name: str, split: Split) -> RawInput:
        """The raw file `name`, read for `split`."""
        return RawInput(self.dataset, split, name, self.paths[name], self.bad)

    def random(self, purpose: str) -> random.Random:
        """A generator that depends on seed, dataset and purpose only, not on what else is built."""
        return random.Random(f"{self.seed}/{self.dataset}/{purpose}")


@dataclass(frozen=True)
class Source:
    """A dataset that can be built.

    Attributes:
        name: as in `--datasets` and in EventSample.dataset.
        format: the format of its samples.
        licence: of the raw data, as the publisher states it.
        homepage: the repository of the raw data.
        files: the official files; empty for generated data.
        read: raw files to the rows of each split.
        options: the model of its options.
        notes: what a reader of the manifest must know, by topic.
    """

    name: str
    format: Format
    licence: str
    homepage: str
    files: tuple[RawFile, ...]
    read: Callable[[Job], dict[Split, SplitRows]]
    options: type[SourceOptions] = SourceOptions
    notes: Mapping[str, str] = field(default_factory=dict)

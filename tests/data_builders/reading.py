"""Read one source from a raw folder, or build it."""

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, Split, read_samples
from data_builders.build.options import BuildOptions, parse_settings
from data_builders.build.run import build
from data_builders.raw.files import MissingRawFileError, locate_files
from data_builders.raw.reader import BadRows
from data_builders.raw.source import Job, Samples, SplitRows
from data_builders.sources import SOURCES
from data_builders.sources.reading import read_source

_SUBSTITUTES = Path(__file__).parent / "raw_substitutes"


def read(
    raw: Path,
    name: str,
    splits: Sequence[Split] = ("train", "test"),
    *settings: str,
    bad: BadRows | None = None,
    seed: int = 0,
) -> dict[Split, Samples]:
    """The wanted splits of a source, not refined; `settings` are `KEY=VALUE` without the dataset's name."""
    source = SOURCES[name]
    wanted = [split for split in splits if split in source.splits]
    parsed = parse_settings([f"{name}.{text}" for text in settings], [source])
    found = locate_files(source, wanted, raw, parsed.files.get(name)).of(wanted)
    job = Job(source, found, seed, parsed.sources[name], bad or BadRows(), frozenset(wanted))
    return {split: rows for split, rows in read_source(job).items() if split in wanted}


@cache
def rows_of_split(raw: Path, name: str, split: Split, *settings: str) -> list[EventSample]:
    """The rows of a split, read once; empty if its raw file is missing, or if it exists only with an option."""
    try:
        return list(read(raw, name, (split,), *settings).get(split, SplitRows([])).rows)
    except MissingRawFileError:
        return []


def published_rows(raw: Path, name: str, split: Split, *settings: str) -> list[EventSample]:
    """The same of published files; skip the test if they are missing."""
    return rows_of_split(raw, name, split, *settings) or pytest.skip(f"no raw file of {name}, {split}")


def letters(text: str) -> str:
    """The letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text.lower()))


def build_splits(
    out: Path, dataset: str, *settings: str, seed: int = 0, swap: float = 0
) -> dict[str, list[EventSample]]:
    """The rows of each split of a build of one generated dataset; `settings` as for `read`."""
    options = BuildOptions([dataset], out, seed=seed, swap=swap, settings=[f"{dataset}.{text}" for text in settings])
    return {path.stem: read_samples(path) for path in build(options).files if path.suffix == ".parquet"}


def use_substitutes(raw: Path, name: str) -> None:
    """Put the files that stand in for a dataset's official ones into their place."""
    folder = SOURCES[name].raw_folder
    for item in SOURCES[name].inputs:
        for file in item.candidates:
            if (stored := _SUBSTITUTES / folder / file.name).is_file():
                for other in item.candidates:
                    (raw / folder / other.name).unlink(missing_ok=True)
                (raw / folder / file.name).parent.mkdir(exist_ok=True)
                shutil.copy(stored, raw / folder / file.name)


def replace(path: Path, old: str, new: str) -> None:
    """Put `new` in the place of the first `old`, which must be there."""
    content = path.read_bytes().decode()
    assert old in content
    path.write_bytes(content.replace(old, new, 1).encode())

"""Run one source on a raw folder: alone, without the refiner and without files, or as a build."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2e_sft.data.sample import EventSample, Split, read_samples
from data_builders.build.options import BuildOptions, parse_settings
from data_builders.build.run import Result, build
from data_builders.raw.files import find_files
from data_builders.raw.reader import BadRows
from data_builders.raw.source import Job, Samples
from data_builders.sources import SOURCES
from tests.data_builders.raw_rows import SUBSTITUTES


def read(
    raw: Path,
    name: str,
    splits: Sequence[Split] = ("train", "test"),
    *settings: str,
    bad: BadRows | None = None,
    seed: int = 0,
) -> dict[Split, Samples]:
    """The wanted splits of a source; `settings` are `KEY=VALUE` texts without the dataset's name."""
    source = SOURCES[name]
    wanted = [split for split in splits if split in source.splits]
    parsed = parse_settings([f"{name}.{text}" for text in settings], [source])
    found = find_files(source, wanted, raw, parsed.files.get(name))
    job = Job(source, found, seed, parsed.sources[name], bad or BadRows(), frozenset(wanted))
    return {split: rows for split, rows in source.read(job).items() if split in wanted}


def build_datasets(raw: Path, name: str, *, seed: int = 0, skip_bad: bool = False) -> tuple[Result, list[EventSample]]:
    """A build of one dataset into a folder beside the raw one, and its rows."""
    out = raw.parent / "out"
    result = build(BuildOptions([name], out, raw, seed, skip_bad))
    return result, [sample for path in result.files if path.suffix == ".parquet" for sample in read_samples(path)]


def steps(rows: Samples) -> dict[str, tuple[int, int]]:
    """The filters of a split, by name: rows in, rows out."""
    return {step.name: (step.rows_in, step.rows_out) for step in rows.filters}


def use_substitute(raw: Path, official: str, substitute: str) -> None:
    """Put a file that stands in for an official one in its place."""
    (raw / official).unlink()
    content = SUBSTITUTES[substitute]
    (raw / substitute).write_bytes(content.encode() if isinstance(content, str) else content)


def replace(path: Path, old: str, new: str) -> None:
    """Put `new` in the place of the first `old`, which must be there."""
    content = path.read_bytes().decode()
    assert old in content
    path.write_bytes(content.replace(old, new, 1).encode())

"""Sample files and build folders as they are named on the command line."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.data.sample import EventSample, Split, read_samples
from d2e_sft.util.errors import UserError
from data_builders.raw.source import SPLITS


@dataclass(frozen=True)
class SampleSet:
    """Samples and the name under which they are reported."""

    name: str
    samples: list[EventSample]


def read_set(path: Path, splits: Collection[Split] = SPLITS) -> SampleSet:
    """All rows of a `.parquet` or `.jsonl` file, or of a build folder the files of the wanted splits.

    Raises:
        UserError: the path does not exist, the folder has none of the splits, or a row is bad.
    """
    if not path.is_dir():
        return SampleSet(path.stem, read_samples(path))
    files = [path / f"{split}.parquet" for split in SPLITS if split in splits]
    found = [file for file in files if file.is_file()]
    if not found:
        raise UserError(
            f"{path}: a folder without {' or '.join(file.name for file in files)}; expected a build folder",
            remedy="name the folder given to `d2e data build --out`, or a .parquet or .jsonl file of EventSample rows",
        )
    return SampleSet(path.resolve().name, [sample for file in found for sample in read_samples(file)])


def repeated_rows(samples: Sequence[EventSample]) -> list[tuple[str, str]]:
    """(id, id of the first) of each sample that is equal to one before it in all that is asked, shown and answered."""
    first: dict[Hashable, str] = {}
    repeats = []
    for sample in samples:
        turns = tuple((turn.role, turn.content) for turn in sample.conversation.turns) if sample.conversation else ()
        key = (sample.context, sample.question, tuple(sample.options), tuple(sample.answers), turns)
        if (met := first.setdefault(key, sample.id)) != sample.id:
            repeats.append((sample.id, met))
    return repeats

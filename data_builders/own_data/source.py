"""Own data as a source: the description becomes what the build knows of a dataset, and reads it like any other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.own_data.row import OwnRow, RowParser, to_sample
from data_builders.own_data.spec import ENDINGS, EXAMPLE, OwnSpec, name_of, read_spec
from data_builders.own_data.table import read_rows
from data_builders.raw.source import Input, Job, OwnData, RawFile, Source, SplitRows

_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def is_own(name: str) -> bool:
    """Whether a name in `--datasets` is the file that describes own data."""
    return Path(name).suffix.lower() in (".yaml", ".yml")


def is_data_file(name: str) -> bool:
    """Whether a name in `--datasets` is a file of rows, which needs a description."""
    return Path(name).suffix.lower() in ENDINGS


def how_to_describe(name: str) -> str:
    """What to do about a file of rows in the place of a description."""
    text = EXAMPLE.replace("mine.csv", name)
    return f"describe it in a file such as mine.yaml, and name that:\n{text}"


def own_source(path: Path) -> Source:
    """The source that a description stands for.

    Raises:
        UserError: the description is missing or wrong, or a file that it names is not there.
    """
    spec = read_spec(path)
    drawn = tuple(spec.shares)
    names = _names(spec)
    inputs = tuple(
        Input(
            split,
            (RawFile(name=name, own=path.parent / spec.files[split]),),
            (split, *(drawn if split == "train" else ())),
        )
        for split, name in names.items()
    )
    return Source(
        name=name_of(path, spec),
        format=spec.format,
        licence=spec.licence or "not stated",
        homepage="",
        inputs=inputs,
        read=partial(_read, spec, path.name),
        redistribution="" if spec.licence else f"{path.name} states no licence (add a line such as `licence: MIT`)",
        splits=tuple(split for split in _SPLITS if split in spec.files or split in drawn),
        own=OwnData(path, spec.model_dump(exclude_unset=True) | names),
    )


def _names(spec: OwnSpec) -> dict[Split, str]:
    """Split → its file as outputs may name it: without the folders of this machine, and no two alike."""
    names: dict[Split, str] = {}
    for split, file in spec.files.items():
        name = Path(file).name if Path(file).is_absolute() else Path(file).as_posix()
        names[split] = f"{split}/{name}" if name in names.values() else name
    return names


def _read(spec: OwnSpec, spec_name: str, job: Job) -> dict[Split, SplitRows]:
    result: dict[Split, SplitRows] = {}
    for split in spec.files:
        if split not in job.files:
            continue
        raw = job.input(split, split, own_spec=spec_name)
        parser = RowParser(spec, spec_name)
        rows = raw.parse(read_rows(raw, spec, parser.columns, parser.optional), parser)
        parts: dict[Split, SplitRows] = {split: SplitRows([], rows_read=len(rows))}
        chosen: dict[Split, list[OwnRow]] = {split: rows}
        if split == "train":
            chosen = _draw(spec, job, rows, parts)
        for part, its_rows in chosen.items():
            parts[part].samples = raw.samples(its_rows, partial(to_sample, spec, job.dataset, part, raw.name))
        result |= parts
    return result


def _draw(spec: OwnSpec, job: Job, rows: list[OwnRow], parts: dict[Split, SplitRows]) -> dict[Split, list[OwnRow]]:
    """The rows of train and of the splits that are a share of it; `parts` gets the filters."""
    left, chosen = rows, {}
    for split, share in spec.shares.items():
        drawn = _of_whole_contexts(left, round(share * len(rows)), job, split)
        parts[split] = SplitRows([], rows_read=len(rows))
        reason = f"{share:g} of the rows of train, drawn with the seed; rows with the same context stay together"
        chosen[split] = parts[split].filters.record("share of train", reason, rows, drawn)
        taken = {row.line for row in drawn}
        staying = [row for row in left if row.line not in taken]
        left = parts["train"].filters.record(f"not drawn for {split}", reason, left, staying)
    if (rows and not left) or not all(chosen.values()):
        contexts = len({row.context for row in rows})
        sizes = ", ".join(f"{split} {len(drawn):,}" for split, drawn in {**chosen, "train": left}.items())
        raise UserError(
            f"{job.files['train'].path}: {len(rows):,} rows with {contexts:,} different contexts cannot be divided as "
            f"asked ({sizes})",
            remedy="rows with the same context stay together: name files for the splits, or ask for another share",
        )
    return {"train": left, **chosen}


def _of_whole_contexts(rows: Sequence[OwnRow], wanted: int, job: Job, split: Split) -> list[OwnRow]:
    """About the wanted number of rows, in file order: all rows of one context after the other, drawn at random."""
    contexts = list(dict.fromkeys(row.context for row in rows))
    job.random(f"share/{split}").shuffle(contexts)
    size = dict.fromkeys(contexts, 0)
    for row in rows:
        size[row.context] += 1
    taken: set[str] = set()
    count = 0
    for context in contexts:
        # Never the last context, nor one that would take more rows than it brings nearer to the number wanted.
        if count < wanted and len(taken) < len(contexts) - 1 and count + size[context] - wanted <= wanted - count:
            taken.add(context)
            count += size[context]
    return [row for row in rows if row.context in taken]

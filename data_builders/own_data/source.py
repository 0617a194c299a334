"""Own data as a source, so that the build treats it like any other dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from d2e_sft.data.foreign import columns_of, description_of, nearest_columns
from d2e_sft.data.hub_rows import fetch_rows, is_hub, parse_address, splits_of
from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.own_data.chat import conversation_rows
from data_builders.own_data.description import EXAMPLE, read_spec
from data_builders.own_data.row import OwnRow, RowParser, to_sample
from data_builders.own_data.spec import DELIMITERS, ENDINGS, OwnSpec, ending_of, name_of
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import SPLITS, Input, Job, OwnData, RawFile, Samples, Source, SplitRows


def is_own(name: str) -> bool:
    """Return whether a name in `--datasets` is a description of own data."""
    return Path(name).suffix.lower() in (".yaml", ".yml")


def is_data_file(name: str) -> bool:
    """Return whether a name in `--datasets` is a file of rows, which needs a description."""
    return Path(name).suffix.lower() in ENDINGS


def how_to_describe(name: str) -> str:
    """Return the remedy for a file of rows given instead of a description."""
    text = EXAMPLE.replace("mine.csv", name)
    return f"describe it in a file such as mine.yaml, and name that:\n{text}"


def own_source(path: Path) -> Source:
    """Return the source of a description; UserError if it is missing or wrong, or one of its files is missing."""
    spec = read_spec(path)
    return _source_of(path, spec, name_of(path, spec))


def hub_source(address: str) -> Source:
    """Return the source of a dataset on the Hub without a description, by its columns.

    Raises:
        UserError: it cannot be fetched, or its columns are not those of conversations or of context, question, answer.
    """
    rows, name = fetch_rows(address), parse_address(address).name.rstrip("/").rpartition("/")[2]
    columns = columns_of(rows.path)
    chat = "messages" if "messages" in columns else "conversations" if "conversations" in columns else ""
    if not chat and not {"context", "question", "answer"} <= set(columns):
        raise UserError(
            f"{address}: has the columns {', '.join(map(repr, columns))}; expected messages, or context, question and "
            "answer",
            remedy=f"describe the columns in a file mine.yaml, and name that:\n{description_of(address, columns)}",
        )
    spec = OwnSpec.model_validate(
        dict.fromkeys(splits_of(address), address)
        | ({"format": "chat", "columns": {"messages": chat}} if chat else {"format": "qa", "relation": "none"})
    )
    return _source_of(Path(f"{name}.yaml"), spec, name_of(Path(f"{name}.yaml"), spec))


def _source_of(path: Path, spec: OwnSpec, name: str) -> Source:
    drawn = tuple(spec.shares)
    names = _names(spec)
    inputs = tuple(
        Input(
            split,
            (_raw_file(path.parent, file_name, spec.files[split], split, spec.rows),),
            (split, *(drawn if split == "train" else ())),
        )
        for split, file_name in names.items()
    )
    return Source(
        name=name,
        format=spec.format,
        licence=spec.licence or "not stated",
        homepage="",
        inputs=inputs,
        read=partial(_read, spec, path.name),
        redistribution="" if spec.licence else f"{path.name} states no licence (add a line such as `licence: MIT`)",
        splits=tuple(split for split in SPLITS if split in spec.files or split in drawn),
        own=OwnData(path, spec.model_dump(exclude_unset=True) | names),
    )


def _raw_file(folder: Path, name: str, file: str, split: Split, most: int | None) -> RawFile:
    if is_hub(file):
        rows = fetch_rows(file, split, most)
        return RawFile(name=name, own=rows.path, commit=rows.commit)
    if (folder / file).is_dir():
        return RawFile(name=name, own=fetch_rows(f"hf:{folder / file}", split, most).path)
    return RawFile(name=name, own=folder / file)


def _names(spec: OwnSpec) -> dict[Split, str]:
    """Return the name of each split's file for outputs: unique, and without folders of this machine."""
    names: dict[Split, str] = {}
    for split, file in spec.files.items():
        address = parse_address(file) if is_hub(file) else None
        absolute = Path(file).is_absolute() or (address is not None and address.folder.is_dir())
        name = Path(address.name if address else file).name if absolute else file if address else Path(file).as_posix()
        names[split] = f"{split}/{name}" if name in names.values() else name
    return names


def _read(spec: OwnSpec, spec_name: str, job: Job) -> dict[Split, Samples]:
    result: dict[Split, Samples] = {}
    for split in (split for split in spec.files if split in job.files):
        raw = job.input(split)
        parser = RowParser(spec, spec_name)
        raw.suggest = partial(nearest_columns, spec.format, by_turns=spec.by_turns)
        found = rows_of(raw, spec, parser)
        rows = SplitRows(conversation_rows(raw, spec, parser, found) if spec.by_turns else raw.parse(found, parser))
        for part, its_rows in (_draw(spec, job, rows) if split == "train" else {split: rows}).items():
            samples = raw.parse(its_rows.rows, partial(to_sample, spec, job.source.name, part, raw.name))
            result[part] = its_rows.become(samples)
    return result


def rows_of(raw: RawInput, spec: OwnSpec, parser: RowParser) -> Iterator[Row]:
    """Yield the rows of a file, by its ending.

    Rows of CSV, TSV and Parquet have the parser's columns, and the optional ones that the file has. Rows of JSON have
    all keys of the object, since each may have others.
    """
    ending = ending_of(raw.path.name)
    if ending == ".jsonl":
        return raw.json_lines()
    if ending == ".json":
        return raw.json_items()
    if ending == ".parquet":
        return raw.parquet_rows(parser.columns, optional=parser.optional)
    return raw.csv_rows(parser.columns, optional=parser.optional, delimiter=spec.delimiter or DELIMITERS[ending])


def _draw(spec: OwnSpec, job: Job, rows: SplitRows[OwnRow]) -> dict[Split, SplitRows[OwnRow]]:
    """Return the rows of train and of the splits that are a share of it."""
    everything = rows.rows
    parts: dict[Split, SplitRows[OwnRow]] = {"train": rows}
    for split, share in spec.shares.items():
        drawn = _of_whole_contexts(rows.rows, round(share * len(everything)), job, split)
        parts[split] = SplitRows(everything)
        reason = f"{share:g} of the rows of train, drawn with the seed; rows with the same context stay together"
        parts[split].keep("share of train", reason, drawn)
        taken = {row.number for row in drawn}
        rows.keep(f"not drawn for {split}", reason, [row for row in rows.rows if row.number not in taken])
    if spec.shares and not all(part.rows for part in parts.values()):
        contexts = len({row.context for row in everything})
        sizes = ", ".join(f"{split} {len(parts[split].rows):,}" for split in (*spec.shares, "train"))
        raise UserError(
            f"{job.files['train'].path}: {len(everything):,} rows with {contexts:,} different contexts cannot be "
            f"divided as requested ({sizes})",
            remedy="rows with the same context stay together: name files for the splits, or ask for another share",
        )
    return parts


def _of_whole_contexts(rows: Sequence[OwnRow], wanted: int, job: Job, split: Split) -> list[OwnRow]:
    """Return about the wanted number of rows, in file order: all rows of contexts that are drawn at random."""
    contexts = list(dict.fromkeys(row.context for row in rows))
    job.random(f"share/{split}").shuffle(contexts)
    size = dict.fromkeys(contexts, 0)
    for row in rows:
        size[row.context] += 1
    taken: set[str] = set()
    count = 0
    for context in contexts:
        # Keep at least one context, and skip one that would overshoot more than it helps.
        if count < wanted and len(taken) < len(contexts) - 1 and count + size[context] - wanted <= wanted - count:
            taken.add(context)
            count += size[context]
    return [row for row in rows if row.context in taken]

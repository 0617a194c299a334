"""Own data as a source, so that the build treats it like any other dataset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from d2e_sft.data.foreign import columns_of, description_of, nearest_columns
from d2e_sft.data.hub_rows import fetch_rows, is_hub, parse_address, splits_of
from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.own_data.chat import read_conversations
from data_builders.own_data.description import EXAMPLE, read_spec
from data_builders.own_data.row import RowParser
from data_builders.own_data.spec import ENDINGS, OwnSpec, name_of
from data_builders.raw.source import SPLITS, Input, Job, OwnData, RawFile, Samples, Source, SplitRows


def is_own(name: str) -> bool:
    """Return whether a name in `--datasets` is a description of own data."""
    return Path(name).suffix.lower() in (".yaml", ".yml")


def how_to_describe(name: str) -> str | None:
    """Return the remedy for a file of rows given instead of its description; None for other names."""
    if Path(name).suffix.lower() not in ENDINGS:
        return None
    return f"describe it in a file such as mine.yaml, and name that:\n{EXAMPLE.replace('mine.csv', name)}"


def own_source(name: str) -> Source | None:
    """Return the source of a description, or of an address on the Hub; None for other names.

    Raises:
        UserError: a description or one of its files is missing or wrong; or a dataset of the Hub cannot be fetched, or
            its columns are not those of conversations or of context, question, answer.
    """
    if is_hub(name):
        return _hub_source(name)
    return _source_of(Path(name), read_spec(Path(name))) if is_own(name) else None


def _hub_source(address: str) -> Source:
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
    return _source_of(Path(f"{name}.yaml"), spec)


def _source_of(path: Path, spec: OwnSpec) -> Source:
    name, names, drawn = name_of(path, spec), _names(spec), tuple(spec.shares)
    inputs = tuple(
        Input(split, (_raw_file(path.parent, file_name, spec, split),), (split, *(drawn if split == "train" else ())))
        for split, file_name in names.items()
    )
    return Source(
        name=name,
        format=spec.format,
        licence=spec.licence or "not stated",
        homepage="",
        inputs=inputs,
        read=partial(_read, spec),
        redistribution="" if spec.licence else f"{path.name} states no licence (add a line such as `licence: MIT`)",
        splits=tuple(split for split in SPLITS if split in spec.files or split in drawn),
        own=OwnData(path, spec.model_dump(exclude_unset=True) | names),
    )


def _raw_file(folder: Path, name: str, spec: OwnSpec, split: Split) -> RawFile:
    address, path = spec.files[split], folder / spec.files[split]
    if path.is_dir():
        address = f"hf:{path}"
    if not is_hub(address):
        return RawFile(name=name, own=path)
    rows = fetch_rows(address, split, spec.rows)
    return RawFile(name=name, own=rows.path, commit=rows.commit)


def _names(spec: OwnSpec) -> dict[Split, str]:
    """Return the name of each split's file for outputs: unique, and without folders of this machine."""
    names: dict[Split, str] = {}
    for split, file in spec.files.items():
        address = parse_address(file) if is_hub(file) else None
        absolute = Path(file).is_absolute() or (address is not None and address.folder.is_dir())
        name = Path(address.name if address else file).name if absolute else file if address else Path(file).as_posix()
        names[split] = f"{split}/{name}" if name in names.values() else name
    return names


def _read(spec: OwnSpec, job: Job) -> dict[Split, Samples]:
    result: dict[Split, Samples] = {}
    for split in (split for split in spec.files if split in job.files):
        raw = job.input(split)
        raw.suggest = partial(nearest_columns, spec.format, given=spec.columns.model_dump(), by_turns=spec.by_turns)
        parser = RowParser(spec, raw)
        rows = SplitRows(read_conversations(parser) if spec.by_turns else raw.parse(parser.rows(), parser))
        result |= _draw(parser, job, rows) if split == "train" else {split: rows}
    return result


def _draw(parser: RowParser, job: Job, rows: Samples) -> dict[Split, Samples]:
    """Return the rows of train and of the splits that are a share of it."""
    spec, everything = parser.spec, rows.rows
    if spec.shares and not everything and not job.bad.entries:
        raise UserError(f"{job.files['train'].path}: no rows; expected some to divide", "add rows under the header")
    parts: dict[Split, Samples] = {"train": rows}
    for split, share in spec.shares.items():
        drawn = _of_whole_contexts(rows.rows, round(share * len(everything)), job, split)
        parts[split] = SplitRows(everything)
        reason = f"{share:g} of the rows of train, drawn with the seed; rows with the same context stay together"
        moved = [_moved(row, split, made_id=not parser.has_ids) for row in drawn]
        parts[split].keep("share of train", reason, moved)
        taken = {row.meta["line"] for row in drawn}
        rows.keep(f"not drawn for {split}", reason, [row for row in rows.rows if row.meta["line"] not in taken])
    if spec.shares and everything and not all(part.rows for part in parts.values()):
        contexts = len({_kept_together(row) for row in everything})
        sizes = ", ".join(f"{split} {len(parts[split].rows):,}" for split in (*spec.shares, "train"))
        raise UserError(
            f"{job.files['train'].path}: {len(everything):,} rows with {contexts:,} different contexts cannot be "
            f"divided as requested ({sizes})",
            remedy="rows with the same context stay together: name files for the splits, or ask for another share",
        )
    return parts


def _moved(row: EventSample, split: Split, *, made_id: bool) -> EventSample:
    """Return a row of train as one of another split; an id that was made names its split."""
    end = row.id.removeprefix(f"{row.dataset}-{row.split}")
    return row.model_copy(update={"split": split, "id": f"{row.dataset}-{split}{end}" if made_id else row.id})


def _kept_together(row: EventSample) -> str:
    """Return what rows of one split share: the context, or without one the row's line."""
    return row.context or f"line {row.meta['line']}"


def _of_whole_contexts(rows: Sequence[EventSample], wanted: int, job: Job, split: Split) -> list[EventSample]:
    """Return about the wanted number of rows, in file order: all rows of contexts that are drawn at random."""
    contexts = list(dict.fromkeys(map(_kept_together, rows)))
    job.random(f"share/{split}").shuffle(contexts)
    size = dict.fromkeys(contexts, 0)
    for row in rows:
        size[_kept_together(row)] += 1
    taken: set[str] = set()
    count = 0
    for context in contexts:
        # Keep at least one context, and skip one that would overshoot more than it helps.
        if count < wanted and len(taken) < len(contexts) - 1 and count + size[context] - wanted <= wanted - count:
            taken.add(context)
            count += size[context]
    return [row for row in rows if _kept_together(row) in taken]

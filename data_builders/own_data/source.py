"""Own data as a source, so that the build treats it like any other dataset."""

from functools import partial
from pathlib import Path

from d2e_sft.data.foreign import columns_of, description_of, nearest_columns
from d2e_sft.data.hub_rows import fetch_rows, is_hub, parse_address, splits_of
from d2e_sft.data.rows import CHATS
from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.own_data.rows import RowParser
from data_builders.own_data.spec import ENDINGS, EXAMPLE, OwnSpec, name_of, read_spec
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

    UserError if one of its files is missing or wrong. A dataset of the Hub needs the columns of conversations, or of
    context, question, answer.
    """
    if is_hub(name):
        path, spec = _hub_spec(name)
    elif is_own(name):
        path, spec = Path(name), read_spec(Path(name))
    else:
        return None
    names, drawn = _names(spec), tuple(spec.shares)
    inputs = tuple(
        Input(split, (_raw_file(path.parent, file_name, spec, split),), (split, *(drawn if split == "train" else ())))
        for split, file_name in names.items()
    )
    return Source(
        name=name_of(path, spec),
        format=spec.format,
        licence=spec.licence or "not stated",
        homepage="",
        inputs=inputs,
        read=partial(_read, spec),
        redistribution="" if spec.licence else f"{path.name} states no licence (add a line such as `licence: MIT`)",
        splits=tuple(split for split in SPLITS if split in spec.files or split in drawn),
        own=OwnData(path, spec.model_dump(exclude_unset=True) | names),
    )


def _hub_spec(address: str) -> tuple[Path, OwnSpec]:
    rows, name = fetch_rows(address), parse_address(address).name.rstrip("/").rpartition("/")[2]
    columns = columns_of(rows.path)
    chat = next((name for name in CHATS if name in columns), "")
    if not chat and not {"context", "question", "answer"} <= set(columns):
        shown = ", ".join(map(repr, columns))
        raise UserError(
            f"{address}: has the columns {shown}; expected messages, or context, question and answer",
            remedy=f"describe the columns in a file mine.yaml, and name that:\n{description_of(address, columns)}",
        )
    keys = {"format": "chat", "columns": {"messages": chat}} if chat else {"format": "qa", "relation": "none"}
    return Path(f"{name}.yaml"), OwnSpec.model_validate(dict.fromkeys(splits_of(address), address) | keys)


def _names(spec: OwnSpec) -> dict[Split, str]:
    """The name of each split's file for outputs: unique, and without folders of this machine."""
    names: dict[Split, str] = {}
    for split, file in spec.files.items():
        address = parse_address(file) if is_hub(file) else None
        absolute = Path(file).is_absolute() or (address is not None and address.folder.is_dir())
        name = Path(address.name if address else file).name if absolute else file if address else Path(file).as_posix()
        names[split] = f"{split}/{name}" if name in names.values() else name
    return names


def _raw_file(folder: Path, name: str, spec: OwnSpec, split: Split) -> RawFile:
    address, path = spec.files[split], folder / spec.files[split]
    if path.is_dir():
        address = f"hf:{path}"
    if not is_hub(address):
        return RawFile(name=name, own=path)
    rows = fetch_rows(address, split, spec.rows)
    return RawFile(name=name, own=rows.path, commit=rows.commit)


def _read(spec: OwnSpec, job: Job) -> dict[Split, Samples]:
    result: dict[Split, Samples] = {}
    for split in (split for split in spec.files if split in job.files):
        raw = job.input(split)
        raw.suggest = partial(
            nearest_columns, spec.format, column_of=spec.columns.model_dump(), by_turns=spec.by_turns
        )
        parser = RowParser(spec, raw)
        rows = SplitRows(parser.read(), rewritten=parser.rewritten)
        result |= _draw(parser, job, rows) if split == "train" and spec.shares else {split: rows}
    return result


def _draw(parser: RowParser, job: Job, train: Samples) -> dict[Split, Samples]:
    """The rows of train and of the splits that are a share of it; rows with the same context stay together."""
    spec, everything, path = parser.spec, train.rows, job.files["train"].path
    if not everything and not job.bad.entries:
        raise UserError(f"{path}: no rows; expected some to divide", "add rows under the header")
    parts: dict[Split, Samples] = {"train": train}
    for split, share in spec.shares.items():
        reason = f"{share:g} of the rows of train, drawn with the seed; rows with the same context stay together"
        target = round(share * len(everything))
        sizes = dict.fromkeys(map(_kept_together, train.rows), 0)
        for row in train.rows:
            sizes[_kept_together(row)] += 1
        contexts, taken, count = list(sizes), set[str](), 0
        job.random(f"share/{split}").shuffle(contexts)
        for context in contexts:
            # Keep at least one context, and skip one that would overshoot more than it helps.
            helps = count < target and count + sizes[context] - target <= target - count
            if helps and len(taken) < len(contexts) - 1:
                taken.add(context)
                count += sizes[context]
        drawn = [row for row in train.rows if _kept_together(row) in taken]
        lines = {row.meta["line"] for row in drawn}
        parts[split] = SplitRows(everything)
        parts[split].keep("share of train", reason, [_moved(row, split, parser.has_ids) for row in drawn])
        train.keep(f"not drawn for {split}", reason, [row for row in train.rows if row.meta["line"] not in lines])
    if everything and not all(part.rows for part in parts.values()):
        contexts = list({_kept_together(row) for row in everything})
        counts = ", ".join(f"{split} {len(parts[split].rows):,}" for split in (*spec.shares, "train"))
        raise UserError(
            f"{path}: {len(everything):,} rows with {len(contexts):,} different contexts cannot be divided as "
            f"requested ({counts})",
            remedy="rows with the same context stay together: name files for the splits, or ask for another share",
        )
    return parts


def _kept_together(row: EventSample) -> str:
    """What rows of one split share: the context, or without one the row's line."""
    return row.context or f"line {row.meta['line']}"


def _moved(row: EventSample, split: Split, has_ids: bool | None) -> EventSample:
    """A row of train as one of another split; an id that was made names its split."""
    end = row.id.removeprefix(f"{row.dataset}-{row.split}")
    return row.model_copy(update={"split": split, "id": row.id if has_ids else f"{row.dataset}-{split}{end}"})

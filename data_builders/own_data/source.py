"""Own data as a source, so that the build treats it like any other dataset."""

from collections import Counter
from collections.abc import Sequence
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

_TOGETHER = "rows with the same context or of the same line stay together"
Key = int | str  # a line or a context


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
    """The rows of train and of the splits that are a share of it; rows of one group (`_groups`) stay together."""
    spec, everything, path = parser.spec, train.rows, job.files["train"].path
    if not everything and not job.bad.entries:
        raise UserError(f"{path}: no rows; expected some to divide", "add rows under the header")
    parts: dict[Split, Samples] = {"train": train}
    group_of = _groups(everything)
    for split, share in spec.shares.items():
        reason = f"{share:g} of the rows of train, drawn with the seed; {_TOGETHER}"
        target = round(share * len(everything))
        sizes = Counter(group_of[row.meta["line"]] for row in train.rows)
        groups, taken, count = list(sizes), set[Key](), 0
        job.random(f"share/{split}").shuffle(groups)
        for group in groups:
            # Keep at least one group, and skip one that would overshoot more than it helps.
            helps = count < target and count + sizes[group] - target <= target - count
            if helps and len(taken) < len(groups) - 1:
                taken.add(group)
                count += sizes[group]
        drawn, left = list[EventSample](), list[EventSample]()
        for row in train.rows:
            (drawn if group_of[row.meta["line"]] in taken else left).append(row)
        parts[split] = SplitRows(everything)
        parts[split].keep("share of train", reason, [_moved(row, split, parser.has_ids) for row in drawn])
        train.keep(f"not drawn for {split}", reason, left)
    if everything and not all(part.rows for part in parts.values()):
        counts = ", ".join(f"{split} {len(parts[split].rows):,}" for split in (*spec.shares, "train"))
        raise UserError(
            f"{path}: {len(everything):,} rows in {len(set(group_of.values())):,} groups without a shared context "
            f"cannot be divided as requested ({counts})",
            remedy=f"{_TOGETHER}: name files for the splits, or ask for another share",
        )
    return parts


def _groups(rows: Sequence[EventSample]) -> dict[int, Key]:
    """Line → the group that its rows belong to: lines are in one group if a chain of shared contexts connects them."""
    parent: dict[Key, Key] = {}

    def root(key: Key) -> Key:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    for row in rows:
        line = root(row.meta["line"])
        parent[line] = root(row.context or line)
    return {row.meta["line"]: root(row.meta["line"]) for row in rows}


def _moved(row: EventSample, split: Split, has_ids: bool | None) -> EventSample:
    """A row of train as one of another split; an id that was made names its split."""
    end = row.id.removeprefix(f"{row.dataset}-{row.split}")
    return row.model_copy(update={"split": split, "id": row.id if has_ids else f"{row.dataset}-{split}{end}"})

"""Rows of a dataset on the Hub as a local JSONL file, fetched once per commit.

The address is `hf:OWNER/NAME:CONFIG@REVISION#SPLIT`; configuration, revision and split are optional. OWNER/NAME may
also be a local folder, from `Dataset.save_to_disk` or with data files.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from d2e_sft.data.cells import DATES, as_text, stored
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import replacing
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.terminal import say

PREFIX = "hf:"
_STREAMED_FROM = 1_000_000_000  # bytes: larger repositories are streamed instead of downloaded
_TIMEOUT = 10  # seconds for the Hub to describe a dataset
_ADDRESS = re.compile(r"hf:(?P<name>[^:@#]+)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?")
# Usual names of the splits on the Hub.
_SPLITS = {"train": ("train",), "dev": ("validation", "dev", "valid", "val"), "test": ("test",)}


@dataclass(frozen=True)
class Address:
    """A dataset's name or folder with the optional parts of its address, empty if not given."""

    name: str
    config: str = ""
    revision: str = ""
    split: str = ""

    @property
    def folder(self) -> Path:
        """The name as a path of this machine, which may not exist."""
        return Path(self.name).expanduser()


@dataclass(frozen=True)
class HubFile:
    """The rows on this machine, and their commit of the repository; empty for a folder."""

    path: Path
    commit: str


def is_hub(name: str) -> bool:
    """Whether a name is the address of a dataset on the Hub instead of a file."""
    return name.startswith(PREFIX)


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def parse_address(text: str) -> Address:
    """Return the parts of an address; raise UserError for anything else."""
    parts = _ADDRESS.fullmatch(text.strip())
    if parts is None:
        raise UserError(f"{text}: not the address of a dataset; expected hf:OWNER/NAME, as in hf:me/chats#train")
    return Address(**{key: value or "" for key, value in parts.groupdict().items()})


@lru_cache(maxsize=16)
def fetch_rows(text: str, split: str = "train", most: int | None = None) -> HubFile:
    """Write the rows of an address, at most `most`, to a JSONL file in the cache; UserError if that fails."""
    address = parse_address(text)
    commit, size = _commit_and_size(address)
    key = hashlib.sha256(repr((address, split, most, commit)).encode()).hexdigest()[:16]
    folder = re.sub(r"[^\w.-]+", "--", address.name.strip("/."))[-80:]
    path = cache_dir() / "hub" / folder / f"{address.split or split}-{key}.jsonl"
    if not (commit and path.is_file()):
        rows = _load(address, split, commit, streaming=size > _STREAMED_FROM or most is not None)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("w", encoding="utf-8") as out:
            features = getattr(rows, "features", None)
            types = {column.name: column.type for column in features.arrow_schema} if features else {}
            if dates := [name for name, kind in types.items() if pa.types.is_temporal(kind)]:
                say(f"{text}: {DATES} ({', '.join(dates)})")
            for row in islice(rows, most):
                plain = {name: stored(value, types.get(name, pa.null())) for name, value in row.items()}
                out.write(json.dumps(plain, ensure_ascii=False, default=_as_json) + "\n")
    return HubFile(path, commit)


def _as_json(value: object) -> object:
    """Return a date or decimal as text; other values, such as images, as an object, which no reader takes for one."""
    try:
        return as_text(value)[0]
    except ValueError:
        return {"type": type(value).__name__}


def splits_of(text: str) -> list[str]:
    """Return which of train, dev and test an address has; a split in it is train. Errors as in `fetch_rows`."""
    address = parse_address(text)
    names = [] if address.split else _split_names(address, _commit_and_size(address)[0])
    return [split for split, usual in _SPLITS.items() if set(usual) & set(names)] if names else ["train"]


def _commit_and_size(address: Address) -> tuple[str, int]:
    """Return a repository's commit and the size of its files in bytes; nothing for a folder."""
    if address.folder.is_dir():
        return "", 0
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

    where = f"{PREFIX}{address.name}"
    if address.name[0] in "./~":
        raise UserError(f"{where}: no such folder", "name a folder, or a dataset of the Hub as hf:OWNER/NAME")
    options = {"revision": address.revision or None, "timeout": _TIMEOUT, "files_metadata": True}
    try:
        info = HfApi().dataset_info(address.name, **options)  # type: ignore[arg-type]
    except (HTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise UserError(
            f"{where}: cannot be read from the Hub ({type(error).__name__}: {str(error)[:120].splitlines()[0]})",
            remedy="check the name and the network, log in with `hf auth login` if it is private or gated, or use a "
            "local copy, hf:FOLDER",
        ) from None
    return info.sha or "", sum(file.size or 0 for file in info.siblings or ())


def _load(address: Address, split: str, commit: str, *, streaming: bool) -> Iterable[Mapping[str, Any]]:
    import datasets

    names = _split_names(address, commit)
    usual = (address.split,) if address.split else _SPLITS[split]
    chosen = next((name for name in usual if name in names), None)
    if chosen is None and (names or usual[0] != "train"):
        known = f"expected one of {', '.join(names)}.{did_you_mean(usual[0], names)}" if names else "it has no splits"
        raise UserError(
            f"{PREFIX}{address.name}: has no split {usual[0]!r}; {known}",
            remedy="name it after a hash, as in hf:OWNER/NAME#SPLIT, or write a share of train, such as `test: 0.2`",
        )
    with _reading(address) as path:
        if is_saved(address.folder):
            saved = datasets.load_from_disk(path)
            return saved[chosen] if chosen else saved
        options: dict[str, Any] = {"split": chosen, "revision": commit or None, "streaming": streaming}
        return datasets.load_dataset(path, address.config or None, **options)


def _split_names(address: Address, commit: str) -> list[str]:
    """Return the dataset's splits; empty if it is one table."""
    import datasets

    with _reading(address) as path:
        if is_saved(address.folder):
            saved = datasets.load_from_disk(path)
            return [] if isinstance(saved, datasets.Dataset) else list(saved)
        return list(datasets.get_dataset_split_names(path, address.config or None, revision=commit or None))


@contextmanager
def _reading(address: Address) -> Iterator[str]:
    """Give the name as `datasets` takes it, and turn its many kinds of errors into one."""
    import datasets

    try:
        yield str(address.folder) if address.folder.is_dir() else address.name
    except (OSError, ValueError, RuntimeError, TypeError, datasets.exceptions.DatasetsError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{PREFIX}{address.name}: `datasets` cannot read it ({reason[:200]})",
            remedy="name a configuration (hf:OWNER/NAME:CONFIG), or download a file of it and describe that",
        ) from None

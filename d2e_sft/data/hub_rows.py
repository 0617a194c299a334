"""Rows of a dataset on the Hub, or of a folder that `datasets` wrote, as a local JSONL file.

`hf:OWNER/NAME`, and where it is needed a configuration, a revision, a split: `hf:OWNER/NAME:CONFIG@REVISION#SPLIT`.
In the place of OWNER/NAME a local folder may stand: one of `Dataset.save_to_disk`, or of data files. Rows are fetched
once for each commit of the repository.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import replacing
from d2e_sft.util.paths import cache_dir

PREFIX = "hf:"
STREAMED_FROM = 1_000_000_000  # bytes: larger repositories are streamed, not downloaded whole
_TIMEOUT = 10  # seconds for the Hub to say whether there is such a dataset
_ADDRESS = re.compile(r"hf:(?P<name>[^:@#]+)(?::(?P<config>[^@#]+))?(?:@(?P<revision>[^#]+))?(?:#(?P<split>.+))?")
# What the Hub's datasets call the splits.
_SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("validation", "dev", "valid", "val"),
    "test": ("test",),
}
Read = TypeVar("Read")


@dataclass(frozen=True)
class Address:
    """Where rows are: a dataset's name or folder, and what was said beside it (empty where nothing was)."""

    name: str
    config: str = ""
    revision: str = ""
    split: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.name).expanduser()

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.folder.is_dir()

    @property
    def path(self) -> str:
        """As `datasets` takes it."""
        return str(self.folder) if self.is_folder else self.name


@dataclass(frozen=True)
class HubFile:
    """The rows on this machine, and which commit of the repository they are; empty for a folder."""

    path: Path
    commit: str


def is_hub(name: str) -> bool:
    """Whether a name is the address of a dataset on the Hub, not of a file."""
    return name.startswith(PREFIX)


def is_saved(path: Path) -> bool:
    """Whether a folder was written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def parse_address(text: str) -> Address:
    """The parts of an address.

    Raises:
        UserError: it is none.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{text}: not the address of a dataset; expected hf:OWNER/NAME, as in hf:me/chats#train")
    return Address(**{key: value or "" for key, value in found.groupdict().items()})


@lru_cache(maxsize=16)
def fetch_rows(text: str, split: str = "train", most: int | None = None) -> HubFile:
    """The rows of an address as a JSONL file in the cache.

    Args:
        split: train, dev or test, where the address names none.
        most: how many rows are taken, the first ones; None takes all.

    Raises:
        UserError: there is no such dataset or split, it cannot be reached, or it may not be read.
    """
    address = parse_address(text)
    commit, size = ("", 0) if address.is_folder else _ask_hub(address)
    key = hashlib.sha256(repr((address, split, most, commit)).encode()).hexdigest()[:16]
    folder = re.sub(r"[^\w.-]+", "--", address.name.strip("/."))[-80:]
    path = cache_dir() / "hub" / folder / f"{address.split or split}-{key}.jsonl"
    if commit and path.is_file():
        return HubFile(path, commit)
    rows = _load(address, split, commit, streaming=size > STREAMED_FROM or most is not None)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as out:
        for row in islice(rows, most):
            out.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return HubFile(path, commit)


def splits_of(text: str) -> list[str]:
    """Which of train, dev and test an address has; the one that it names is train.

    Raises:
        UserError: as `fetch_rows`.
    """
    address = parse_address(text)
    if address.split:
        return ["train"]
    commit = "" if address.is_folder else _ask_hub(address)[0]
    names = _read(address, lambda: _split_names(address, commit))
    return [split for split, called in _SPLITS.items() if not names or set(called) & set(names)][
        : None if names else 1
    ]


def _ask_hub(address: Address) -> tuple[str, int]:
    """The commit of a repository, and the bytes of its files."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    where = f"{PREFIX}{address.name}"
    if address.name[0] in "./~":
        raise UserError(f"{where}: no such folder", "name a folder, or a dataset of the Hub as hf:OWNER/NAME")
    try:
        info = HfApi().dataset_info(
            address.name, revision=address.revision or None, timeout=_TIMEOUT, files_metadata=True
        )
    except GatedRepoError:
        raise UserError(
            f"{where}: gated; its owner must let you in", "ask on its page, then `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{where}: no such dataset on the Hub, or a private one that you may not read",
            remedy="correct the name (hf:OWNER/NAME), or log in with `hf auth login`",
        ) from None
    except (HTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise UserError(
            f"{where}: the Hub cannot be asked for it ({type(error).__name__}: {str(error)[:120].splitlines()[0]})",
            remedy="check the name and the network; or name a local copy, hf:FOLDER: a folder of data files, or what "
            "Dataset.save_to_disk wrote",
        ) from None
    return info.sha or "", sum(file.size or 0 for file in info.siblings or ())


def _load(address: Address, split: str, commit: str, *, streaming: bool) -> Iterable[Mapping[str, Any]]:
    import datasets

    names = _read(address, lambda: _split_names(address, commit))
    if not names and (address.split or split) != "train":
        raise UserError(
            f"{PREFIX}{address.name}: one dataset without splits; asked for {address.split or split}",
            remedy="write a share of train, such as `test: 0.2`",
        )
    chosen = _pick(address, (address.split,) if address.split else _SPLITS[split], names) if names else ""
    if is_saved(address.folder):
        saved = datasets.load_from_disk(str(address.folder))
        return saved[chosen] if chosen else saved
    name, config = address.path, address.config or None
    options: dict[str, Any] = {"split": chosen, "revision": commit or None, "streaming": streaming}
    return _read(address, lambda: datasets.load_dataset(name, config, **options))


def _split_names(address: Address, commit: str) -> list[str]:
    """The dataset's splits; none where it is one table without any."""
    import datasets

    if is_saved(address.folder):
        saved = datasets.load_from_disk(str(address.folder))
        return [] if isinstance(saved, datasets.Dataset) else list(saved)
    return list(datasets.get_dataset_split_names(address.path, address.config or None, revision=commit or None))


def _read(address: Address, read: Callable[[], Read]) -> Read:
    """What `datasets` reads, its many kinds of errors as one."""
    import datasets

    try:
        return read()
    except (OSError, ValueError, RuntimeError, TypeError, datasets.exceptions.DatasetsError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{PREFIX}{address.name}: `datasets` cannot read it ({said[0][:200]})",
            remedy="name a configuration (hf:OWNER/NAME:CONFIG), or download a file of it and describe that",
        ) from None


def _pick(address: Address, wanted: tuple[str, ...], names: list[str]) -> str:
    found = next((name for name in wanted if name in names), None)
    if found is None:
        raise UserError(
            f"{PREFIX}{address.name}: has no split {wanted[0]!r}; expected one of {', '.join(names)}."
            f"{did_you_mean(wanted[0], names)}",
            remedy="name it behind a hash, as in hf:OWNER/NAME#SPLIT",
        )
    return found

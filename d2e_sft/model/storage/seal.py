"""Checksums of a model's folder: written when the folder is complete, verified before the model is used.

`checksums.json` lists size and SHA-256 of the folder's files, and of the weights of the models that it depends on: an
adapter's base, a reference.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, sync, write_whole
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.progress import Progress

SEAL_FILE = "checksums.json"
# A change of these changes what the model answers.
_MODEL_FILES = ("*.safetensors", "*.safetensors.index.json", "config.json", "adapter_config.json")
_HASHING_THREADS = 8
_SMALL = 1 << 20  # bytes; hashing less is quicker than looking a digest up


class FileSum(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    bytes: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Seal(BaseModel):
    """The content of `checksums.json`: path in the folder → its sum, and model → file of its weights → its sum."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: dict[str, FileSum] = Field(min_length=1)
    depends_on: dict[str, dict[str, FileSum]] = {}


def seal(folder: Path, files: Iterable[Path], depends_on: Mapping[str, Mapping[str, FileSum]] | None = None) -> None:
    """Sync files to disk and write the folder's seal; for `depends_on` see `Seal`."""
    paths = sorted(files)
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashing leaves the interpreter lock to the other threads
        list(pool.map(sync, paths))
    sums = {
        path.relative_to(folder).as_posix(): file_sum
        for path, file_sum in zip(paths, _sums(paths, cached=False), strict=True)
    }
    content = Seal(files=sums, depends_on={name: dict(weights) for name, weights in (depends_on or {}).items()})
    write_whole(folder / SEAL_FILE, content.model_dump_json(indent=1) + "\n")


def renew_seal(folder: Path, name: str) -> None:
    """Replace the sum of a small file that was written again, if the folder has a seal that lists it."""
    if not (folder / SEAL_FILE).is_file():
        return
    content = read_seal(folder)
    if content.files.get(name) not in (None, renewed := _sum(folder / name)):
        content.files[name] = renewed
        write_whole(folder / SEAL_FILE, content.model_dump_json(indent=1) + "\n")


def read_seal(folder: Path) -> Seal:
    """Return a folder's seal; UserError if it is missing or malformed."""
    try:
        return Seal.model_validate_json((folder / SEAL_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"{SEAL_FILE} is missing"
    except (OSError, ValueError):
        problem = f"{SEAL_FILE} is not readable"
    raise UserError(f"{folder}: {problem}", _remedy(folder))


def damage(folder: Path, *, cached: bool) -> str | None:
    """Describe in one line how a folder first differs from its seal, with the file's name; None if it is whole.

    Files that were added after sealing, such as an evaluation's, are ignored, except those of a model. If `cached`,
    the digest of a large file is from the cache if size and times of the file are as they were.
    """
    try:
        expected = read_seal(folder).files
    except UserError as error:
        return error.message.removeprefix(f"{folder}: ")
    unlisted = [file.name for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.name not in expected]
    if unlisted:
        return f"{unlisted[0]} is not listed in {SEAL_FILE}"
    # Sizes first: most damage is a truncated file, and comparing sizes takes no time.
    for name, file_sum in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != file_sum.bytes:
            return f"{name} has {path.stat().st_size:,} bytes; expected {file_sum.bytes:,}"
    sums = _sums([folder / name for name in expected], cached=cached)
    for (name, file_sum), actual in zip(expected.items(), sums, strict=True):
        if actual != file_sum:
            return f"{name} {_difference(file_sum, actual)}"
    return None


def check_seal(folder: Path) -> None:
    """Raise a UserError that names the file if a folder differs from its seal, or has none."""
    problem = damage(folder, cached=True)
    if problem is not None:
        raise UserError(f"{folder}: {problem}", _remedy(folder))


def weight_sums(folder: Path) -> dict[str, FileSum]:
    """Return the sums of a model's weights: file name → sum."""
    return file_sums(sorted(file for file in folder.glob("*.safetensors") if file.is_file()))


def file_sums(files: Sequence[Path]) -> dict[str, FileSum]:
    """Return the sums of files by name, from the cache where a file is as it was."""
    return dict(zip((file.name for file in files), _sums(files, cached=True), strict=True))


def check_same_weights(folder: Path, name: str, expected: Mapping[str, FileSum], found: Mapping[str, FileSum]) -> None:
    """Raise a UserError if the weights of a model are not those that a sealed folder was trained on."""
    changed = [file for file in sorted({*expected, *found}) if expected.get(file) != found.get(file)]
    if changed:
        difference = _difference(expected.get(changed[0]), found.get(changed[0]))
        raise UserError(
            f"{folder}: was trained on other weights of {name!r}: {changed[0]} {difference}",
            remedy=f"restore {name!r} as it was; with other weights below it, the run would answer differently",
        )


def _difference(expected: FileSum | None, found: FileSum | None) -> str:
    if expected is None:
        return "did not exist then"
    if found is None:
        return "is missing now"
    return f"has SHA-256 {found.sha256[:16]}…; expected {expected.sha256[:16]}…"


def _remedy(folder: Path) -> str:
    if folder.name.startswith("checkpoint-"):
        return "use another checkpoint of the run, or copy the folder again from where it was trained"
    return "copy the folder again from where it was trained, or use one of its checkpoints"


def _sums(paths: Iterable[Path], *, cached: bool) -> list[FileSum]:
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        sums = pool.map(_cached_sum if cached else _sum, paths)
        return list(Progress(sums, desc="checksums", unit="file"))


def _sum(path: Path) -> FileSum:
    return FileSum(bytes=path.stat().st_size, sha256=sha256_of(path))


def _cached_sum(path: Path) -> FileSum:
    """Return the sum of a file, from the cache if its inode, size and times are as they were.

    A program that writes the file changes its `ctime`, which no program can set.
    """
    status = path.stat()
    if status.st_size < _SMALL:
        return _sum(path)
    place = path.resolve()
    state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    entry = cache_dir() / "checksums" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:32]}.json"
    kept = _kept(entry)
    if kept is not None and kept.get("path") == str(place) and kept.get("state") == state:
        return FileSum(bytes=status.st_size, sha256=str(kept["sha256"]))
    file_sum = _sum(path)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_whole(entry, json.dumps({"path": str(place), "state": state, "sha256": file_sum.sha256}))
    except OSError:  # a cache that cannot be written costs time only
        pass
    return file_sum


def _kept(entry: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None

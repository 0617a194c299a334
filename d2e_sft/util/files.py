"""Small helpers for files that several packages need."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have the operating system put a file, or a folder's list of files, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A path beside `path` to write to; it takes `path`'s place in one piece at the end, and is removed on an error.

    Whatever happens meanwhile, `path` has all of its old or all of its new content. Its folder is made.

    Args:
        shared: several threads or processes may write `path` at once, so each writes to a name of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial" if shared else path.name + ".partial")
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write to; it becomes `path` at the end, and is removed on an error.

    Several processes may do so at once: each writes to a folder of its own.

    Raises:
        OSError: there is something at `path` by then; an empty folder is replaced.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
    try:
        yield partial
        partial.chmod(0o755)  # made readable for its owner alone
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file in one piece, see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file in one piece, for people and programs: indented, letters as they are."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


class _UniqueKeyConstructor(yaml.constructor.BaseConstructor):
    """A key given twice is an error, where PyYAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: the key {twice!r} is given twice")
        return super().construct_mapping(node, deep=deep)


class _StrictLoader(_UniqueKeyConstructor, yaml.SafeLoader):
    """YAML's safe loader, with every key given once."""


class _TextLoader(_UniqueKeyConstructor, yaml.BaseLoader):
    """The same, but every scalar is text: `yes` is not true, `01` is not 1, and nothing at all is ""."""


def load_yaml(text: str, *, texts_only: bool = False) -> Any:
    """The content of a YAML document; a key given twice in a mapping is a `yaml.YAMLError`.

    Args:
        texts_only: leave scalars as they are written, instead of making numbers, booleans and null of them.
    """
    return yaml.load(text, Loader=_TextLoader if texts_only else _StrictLoader)


def object_with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """For json's `object_pairs_hook`: the object, or ValueError where a key is given twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for i, name in enumerate(names) if name in names[:i])!r} is given twice")
    return result

"""Checksums, atomic writes, strict YAML and JSON."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from d2e_sft.util.errors import UserError, describe_validation_error, shortened
from d2e_sft.util.locks import temporary_folder
from d2e_sft.util.terminal import warn

T = TypeVar("T")

# Text compresses to a tenth or twentieth, an archive bomb to a thousandth.
_MOST_TIMES, _ALWAYS, _LARGEST = 200, 256 << 20, 4 << 30
_STREAM_FOLDERS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
_MOST_NAMES = 6  # files that a message lists
PICTURES = (".svg", ".png", ".pdf")  # endings of files
CHECKSUMS = "checksums"  # in files of results


def sha256_of(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def most_unpacked(path: Path) -> int:
    """The most bytes that a compressed file may unpack to: far above any text, far below an archive bomb."""
    return min(_LARGEST, max(_ALWAYS, _MOST_TIMES * path.stat().st_size))


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of files, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` at the end and is removed on an error.

    At any time `path` has either its old or its new content. Its folder is created. A symbolic link stays, and its
    target is replaced. A device, a pipe or `/dev/stdout` gets the content at the end. With `shared` several threads or
    processes may write `path` at once.
    """
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as place:
            partial = Path(place) / path.name
            yield partial
            with partial.open("rb") as content, path.open("wb") as stream:
                shutil.copyfileobj(content, stream)
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid.uuid4().hex}.partial" if shared else path.name + ".partial")
    if partial.is_symlink():
        partial.unlink()  # or its target would be written
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _is_stream(path: Path) -> bool:
    """Whether a path is something to write into, not a file to replace; `/dev/stdout` may be redirected to a file."""
    return path.parent in _STREAM_FOLDERS or (path.exists() and not path.is_file() and not path.is_dir())


@contextmanager
def replacing_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to write to, which becomes `path` at the end and is removed on an error.

    Several processes may do this at once. What a killed one left is removed by the next. Unless `overwrite`, it is an
    OSError at the end if `path` exists and is not an empty folder. A symbolic link stays, and its target is replaced.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()
    with temporary_folder(path.parent, f".{path.name}.partial-") as partial:
        yield partial
        partial.chmod(0o755)  # temporary folders are private
        put_folder(partial, path, overwrite=overwrite)


def put_folder(complete: Path, path: Path, *, overwrite: bool) -> None:
    """Move a complete folder to its place; with `overwrite`, what is there is named, moved away and removed."""
    if not (overwrite and path.exists() and any(path.iterdir())):
        os.replace(complete, path)
        return
    warn(removal(path, path.iterdir()))
    with temporary_folder(path.parent, f".{path.name}.replaced-") as old:
        os.replace(path, old)
        try:
            os.replace(complete, path)
        except OSError:
            os.replace(old, path)
            raise


def removal(folder: Path, paths: Iterable[Path]) -> str:
    """Say what `--overwrite` removes from a folder: the evaluations of a run by name, then other files."""
    tops = sorted({path.relative_to(folder).parts[0] for path in paths})
    evaluations = sorted({file.parent.name for file in folder.glob("eval/*/*")}) if "eval" in tops else []
    names = [name for name in tops if not (name == "eval" and evaluations)]
    shown = ", ".join(names[:_MOST_NAMES]) + f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
    parts = [f"the evaluation{'s' * (len(evaluations) > 1)} {', '.join(evaluations)}"] if evaluations else []
    return f"--overwrite removes from {folder}: {'; '.join([*parts, *filter(None, [shown])])}"


def check_ending(option: str, ending: str, endings: Sequence[str]) -> None:
    """Raise UserError if the file to write of an option, such as `--plot a.html`, has none of the endings."""
    if ending not in endings:
        raise UserError(f"{option}: unknown kind of file; expected a name that ends in {', '.join(endings)}")


def write_whole(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write an indented JSON file atomically, without escaping letters."""
    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json_as(kind: type[T], path: Path, noun: str, remedy: str) -> T:
    """Read a JSON file as a type that pydantic validates; UserError if it does not hold `noun`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", remedy) from None
    return _validated(kind, content, f"{path}: not {noun}", remedy)


def _validated(kind: type[T], content: bytes | dict[str, Any], problem: str, remedy: str) -> T:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_json(content) if isinstance(content, bytes) else adapter.validate_python(content)
    except ValidationError as error:
        raise UserError(f"{problem} ({describe_validation_error(error)})", remedy) from None


def with_checksums(content: Mapping[str, Any], files: Iterable[Path] = ()) -> dict[str, Any]:
    """Return results as plain JSON with their checksum, and those of files next to them; see `read_results`."""
    plain = json.loads(json.dumps(content, allow_nan=False))
    sums = {file.name: sha256_of(file) for file in files}
    return {**plain, CHECKSUMS: {"content": _sum_of(plain, sums), "files": sums}}


def read_results(kind: type[T], path: Path, noun: str, remedy: str) -> T:
    """Read results from `with_checksums` as a type that pydantic validates.

    Raises UserError if they are missing or not `noun`, or they or a file next to them were changed.
    """
    content = read_json_as(dict[str, Any], path, noun, remedy)
    sums = content.pop(CHECKSUMS, None)
    if not isinstance(sums, dict) or not isinstance(sums.get("files"), dict):
        raise UserError(f"{path}: has no {CHECKSUMS}, so {noun} in it may have been edited", remedy)
    if sums.get("content") != _sum_of(content, sums["files"]):
        raise UserError(f"{path}: was changed after it was written", remedy)
    for name, expected in sums["files"].items():
        file = path.parent / name
        if not file.is_file() or sha256_of(file) != expected:
            problem = "was changed" if file.is_file() else "is missing"
            raise UserError(f"{file}: {problem}; {path.name} has its SHA-256 ({str(expected)[:16]}…)", remedy)
    return _validated(kind, content, f"{path}: not {noun}", remedy)


def _sum_of(content: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([content, files], sort_keys=True).encode()).hexdigest()


class _UniqueKeyConstructor(yaml.constructor.BaseConstructor):
    """Duplicate keys and lone surrogates are errors; PyYAML would accept both, and keep the last of equal keys."""

    def construct_scalar(self, node: Any) -> Any:
        if problem := surrogate_problem(str(node.value)):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {problem}")
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # others are rejected below
                if key in seen:
                    raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: the key {key!r} is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _StrictLoader(_UniqueKeyConstructor, yaml.SafeLoader):
    """YAML's safe loader with unique keys."""


class _PackageLoader(_UniqueKeyConstructor, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same, parsed by libyaml if it is installed: ten times as fast, but deep nesting would crash it."""


class _TextLoader(_UniqueKeyConstructor, yaml.BaseLoader):
    """The same, but every scalar is text: `yes` is not true, `01` is not 1, and an empty value is ""."""


def load_yaml(text: str, *, texts_only: bool = False) -> Any:
    """Return the content of a YAML document; a key given twice in a mapping is a `yaml.YAMLError`.

    `texts_only` leaves scalars as text instead of converting them to numbers, booleans and null.
    """
    try:
        return yaml.load(text, Loader=_TextLoader if texts_only else _StrictLoader)
    except RecursionError:
        raise yaml.YAMLError("it nests too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark, note = error.problem_mark, ", ".join(filter(None, (error.context, error.problem)))
        raise yaml.YAMLError(f"line {mark.line + 1}, column {mark.column + 1}: {note}" if mark else note) from None
    except ValueError as error:  # a number with too many digits, or a date that does not exist
        raise yaml.YAMLError(str(error)) from None


def load_package_yaml(path: Path) -> Any:
    """Return the content of a YAML file of this package; see `load_yaml` for files of users."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_PackageLoader)


def load_json(text: str | bytes | bytearray) -> Any:
    """Return the content of a JSON text in UTF-8.

    Raises ValueError for a duplicate key, NaN, infinity or a lone surrogate, which Python's decoder accepts, and
    RecursionError for deep nesting.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    content = json.loads(text, object_pairs_hook=object_with_unique_keys, parse_constant=_not_json)
    if "\\u" in text and (problem := surrogate_problem(json.dumps(content, ensure_ascii=False))):
        raise ValueError(problem)
    return content


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def surrogate_problem(text: str) -> str | None:
    """Return what is wrong with a text that has a lone surrogate, which no tokenizer and no file takes, or None."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        excerpt = shortened(text[max(0, error.start - 30) : error.start + 1])
        return f"contains a lone surrogate (half of a character) at the end of {excerpt}; expected whole characters"
    return None


def object_with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Hook for json's `object_pairs_hook`: the object, or ValueError for a duplicate key."""
    result = dict(pairs)
    if len(result) != len(pairs):
        [(key, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} is given twice")
    return result

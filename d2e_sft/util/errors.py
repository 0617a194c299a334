"""The exception that is shown to a user as a message instead of a traceback, and the wording of messages."""

from __future__ import annotations

import difflib
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

_MOST_PROBLEMS = 5
_OTHER_PATH = "name another path"
_PERMISSIONS = "change the permissions, or name another path"
# Error → what is wrong with the path, and the remedy.
_OF_PATHS = {
    errno.ENOENT: ("does not exist", "check the path"),
    errno.ENOTDIR: ("is not a folder; expected one", _OTHER_PATH),
    errno.EISDIR: ("is a folder; expected a file", _OTHER_PATH),
    errno.EEXIST: ("already exists", _OTHER_PATH),
    errno.ENOTEMPTY: ("is a folder with content, perhaps written by another process just now", _OTHER_PATH),
    errno.EACCES: ("no permission to read or write it", _PERMISSIONS),
    errno.EPERM: ("no permission to read or write it", _PERMISSIONS),
    errno.EROFS: ("is on a read-only file system", _OTHER_PATH),
    errno.ENAMETOOLONG: ("is too long; most file systems take 255 bytes for a name and 4,095 for a path", _OTHER_PATH),
    errno.ELOOP: ("is a symbolic link that leads back to itself", _OTHER_PATH),
    errno.EMFILE: ("cannot be opened, since this process has too many open files", "raise the limit: ulimit -n 65536"),
}
_LONGEST_PATH = 200  # characters of a path
_NO_ROOM = 2**20  # bytes that may be free although a write failed


class UserError(Exception):
    """A problem that the user can fix: wrong input, a missing file, an unknown name.

    The message has the value found and the value expected; the `remedy`, how to fix it, has its own line.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    @property
    def one_line(self) -> str:
        """Message and remedy, for an answer that has no line for each."""
        return "; ".join(filter(None, (self.message, self.remedy)))

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n  remedy: {self.remedy}"


class ProcessError(UserError):
    """A problem of one process of a launch; all processes meet any other UserError together."""


def shortened(value: object, length: int = 200) -> str:
    """A value's repr for a message, cut to `length` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError) as error:  # ValueError: a number with more digits than Python prints
        return f"a {type(value).__name__} that cannot be shown ({error})"
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the nearest known name, or the empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def describe_problem(item: Mapping[str, Any]) -> str:
    """One error of a pydantic ValidationError: the field, the value found, what was expected."""
    field, kind = ".".join(map(str, item["loc"])), item["type"]
    if kind == "missing":
        return f"{field}: missing; expected a value"
    is_empty = kind == "string_pattern_mismatch"
    message = "expected text that is not empty" if is_empty else item["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        hint = did_you_mean(str(item["input"]), item["ctx"]["expected"].split("'")[1::2])
        message += f".{hint}" if hint else ""
    return f"{field}: got {shortened(item['input'])}; {message}" if field else message


def describe_validation_error(
    error: ValidationError, describe: Callable[[Mapping[str, Any]], str] = describe_problem
) -> str:
    """Return a pydantic error as one line: its first five problems, by `describe`, and the number of the others."""
    parts = [describe(item) for item in error.errors()[:_MOST_PROBLEMS]]
    more = error.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more:,} more" if more else "")


def path_error(error: BaseException) -> UserError | None:
    """Return the message for an error of the operating system, or None for another error."""
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UserError("a path contains the character NUL; expected none", "check the paths in the files you gave")
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        shown = shortened(error.object[max(0, error.start - 60) : error.end])
        return UserError(f"{shown}: not UTF-8", "write the text in UTF-8, or rename the file")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):  # of Path.resolve
        return _path_problem(str(error).removeprefix("Symlink loop from ").strip("'\""), errno.ELOOP, "")
    if not isinstance(error, OSError) or error.errno is None:
        return None
    reason = error.strerror or os.strerror(error.errno)
    path = error.filename if error.filename2 is None else error.filename2  # a rename's target is the path asked for
    if not isinstance(path, str | bytes):
        return UserError(reason)
    return _path_problem(os.fsdecode(path), error.errno, reason)


def _path_problem(name: str, number: int, reason: str) -> UserError:
    path = Path(name.removesuffix(".partial"))
    places = [*reversed(path.parents), path]
    existing = [place for place in places if os.path.lexists(place)]
    no_folder = next(
        (place for place in places[: None if number == errno.EEXIST else -1] if _is_no_folder(place)), None
    )
    if number in (errno.ENOTDIR, errno.EEXIST, errno.ENOENT) and no_folder is not None:
        path, number = no_folder, errno.ENOTDIR
    elif number in (errno.EACCES, errno.EPERM) and existing:
        path = existing[-1]
    problem, remedy = _OF_PATHS.get(number, (reason, _OTHER_PATH))
    shown = str(path)
    shown = shown if len(shown) <= _LONGEST_PATH else f"{shown[:_LONGEST_PATH]}… ({len(shown):,} characters)"
    return UserError(f"{shown}: {problem}", remedy)


def _is_no_folder(path: Path) -> bool:
    return os.path.lexists(path) and not path.is_dir()


def is_disk_full(error: BaseException, folder: Path | None = None) -> bool:
    """Whether a write failed because the disk is full, whatever library wrote.

    torch.save gives no reason, so the free space of the target `folder` is checked.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        message = str(seen).lower()
        if any(mark in message for mark in ("no space left on device", "os error 28", "disk quota exceeded")):
            return True
        torchs = "failed writing file" in message or "inline_container" in message
        if folder is not None and torchs and shutil.disk_usage(folder).free < _NO_ROOM:
            return True
        seen = seen.__cause__ or seen.__context__
    return False

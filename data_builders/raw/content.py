"""What a raw file is, judged by its first bytes: data, perhaps packed with gzip, or something saved in its place."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import IO, cast

from d2e_sft.util.errors import UserError

DAMAGED = "the file is damaged: fetch it again, or drop --raw and let the builder download it"
OWN_DAMAGED = "the file is damaged, or not what its ending says: mend it, or save it again"
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)

_START = 512
_FOUND = 60
_GZIP_MARK = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_MARKUP_COMMENTS = re.compile(rb"\A(\s|<!--.*?(-->|\Z))*", re.DOTALL)
_OR_DOWNLOAD = "or drop --raw and let the builder download it"
_SAVE_RAW = "save the raw file, not the page that shows it"
_ASK_AGAIN = "the server refused or did not know the file when it was fetched: fetch it again"
# (beginning in lower case, what such a file is, the remedy)
_NOT_DATA = (
    (b"<!doctype html", "a web page (HTML)", _SAVE_RAW),
    (b"<html", "a web page (HTML)", _SAVE_RAW),
    (b"<head", "a web page (HTML)", _SAVE_RAW),
    (b"<body", "a web page (HTML)", _SAVE_RAW),
    (b"<?xml", "a server's answer in XML", _ASK_AGAIN),
    (b"<error>", "a server's error message (XML)", _ASK_AGAIN),
    (b"404: not found", "a server's error message", _ASK_AGAIN),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, which only names the file",
        "get the file itself with 'git lfs pull'",
    ),
    (b"pk\x03\x04", "a zip archive", "unpack it and give the file inside"),
)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where it is a gzip file; its first bytes tell, since endings differ."""
    with path.open("rb") as source:
        packed = source.read(len(_GZIP_MARK)) == _GZIP_MARK
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def damaged(own: bool) -> str:
    """The remedy for a damaged file; a user's own file can be got from nowhere else."""
    return OWN_DAMAGED if own else DAMAGED


def broken_gzip(path: Path, line: int, error: Exception, *, own: bool = False) -> UserError:
    return UserError(f"{path}, line {line}: the gzip data ends or breaks here ({error})", remedy=damaged(own))


def check_is_data(path: Path, *, own: bool = False) -> None:
    """Refuse a file that is empty or that is no data at all: a web page, an error message, an archive, UTF-16.

    Args:
        own: whether it is a user's own file, which no builder can download.

    Raises:
        UserError: for any of them; the message says which, and how the file begins.
    """
    with open_bytes(path) as source:
        try:
            start = source.read(_START)
        except GZIP_ERRORS as error:
            raise broken_gzip(path, 1, error, own=own) from None
    if not start.strip():
        raise UserError(f"{path}: the file is empty; expected data", remedy=damaged(own))
    begun = start.removeprefix(_UTF8_MARK)
    plain = _MARKUP_COMMENTS.sub(b"", begun).lower()
    if plain.startswith(b"<?xml") and b"<html" in plain:
        plain = b"<html"
    if not plain:
        plain = b"<html"  # nothing but a comment so far
    for mark, what, remedy in _NOT_DATA:
        if plain.startswith(mark):
            raise _no_data(path, what, begun.decode("utf-8", errors="replace"), remedy, own)
    # UTF-16 with or without its mark: every second byte of a text in Latin letters is zero.
    if start.count(0) * 4 > len(start):
        found = start.decode("utf-16-be" if start[:1] in (b"\xfe", b"\0") else "utf-16-le", errors="replace")
        raise _no_data(path, "UTF-16 text or binary data", found, "save it as UTF-8 text", own)


def _no_data(path: Path, what: str, found: str, remedy: str, own: bool) -> UserError:
    remedy = remedy if own else f"{remedy}, {_OR_DOWNLOAD}"
    return UserError(f"{path}: holds {what}, not data; it begins with {found.strip()[:_FOUND]!r}", remedy=remedy)

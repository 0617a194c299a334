"""From the bytes of a raw file to values: gzip, what is no data at all, JSON that may break off, strict CSV."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import most_unpacked, object_with_unique_keys
from data_builders.raw.row import shortened

DAMAGED = "the file is damaged: fetch it again, or drop --raw and let the builder download it"
OWN_DAMAGED = "the file is damaged, or not what its ending says: mend it, or save it again"
_LONGEST_CELL = 131_072  # csv's own limit, which would refuse the file and name no column
_MOST_DIGITS = 4_300  # Python refuses to convert longer numbers; no dataset has one

_START = 512
_BLANKS = re.compile(r"[ \t\n\r]*")
_GZIP_MARK = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_MARKUP_COMMENTS = re.compile(rb"\A(\s|<!--.*?(-->|\Z))*", re.DOTALL)
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
    (_GZIP_MARK, "a gzip file within a gzip file", "unpack it once and give that file"),
)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where it is a gzip file; its first bytes tell, since endings differ."""
    with path.open("rb") as source:
        packed = source.read(len(_GZIP_MARK)) == _GZIP_MARK
    return cast(IO[bytes], io.BufferedReader(_Unpacked(path), 1 << 16)) if packed else path.open("rb")


class _Unpacked(io.RawIOBase):
    """What a gzip file unpacks to; one that unpacks to too much is damaged."""

    def __init__(self, path: Path) -> None:
        self._source = gzip.GzipFile(path)
        self._left = self._most = most_unpacked(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._source.read1(len(buffer))
        self._left -= len(content)
        if self._left < 0:
            raise gzip.BadGzipFile(f"it unpacks to more than {self._most:,} bytes")
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._source.close()
        super().close()


def check_is_data(path: Path, *, own: bool = False) -> None:
    """Refuse a file that is empty or that is no data at all: a web page, an error message, an archive, UTF-16.

    Args:
        own: whether it is a user's own file, which no builder can download.

    Raises:
        UserError: for any of them; the message says which, and how the file begins.
    """
    damaged = OWN_DAMAGED if own else DAMAGED
    with open_bytes(path) as source:
        try:
            start = source.read(_START)
        except GZIP_ERRORS as error:
            raise UserError(f"{path}, line 1: {broken_gzip(error)}", remedy=damaged) from None
    if not start.strip():
        raise UserError(f"{path}: the file is empty; expected data", remedy=damaged)
    begun = start.removeprefix(_UTF8_MARK)
    what, remedy = _not_data(begun)
    found = begun.decode("utf-8", errors="replace")
    # UTF-16 with or without its mark: every second byte of a text in Latin letters is zero.
    if not what and start.count(0) * 4 > len(start):
        what, remedy = "UTF-16 text or binary data", "save it as UTF-8 text"
        found = start.decode("utf-16-be" if start[:1] in (b"\xfe", b"\0") else "utf-16-le", errors="replace")
    if what:
        raise UserError(
            f"{path}: holds {what}, not data; it begins with {found.strip()[:60]!r}",
            remedy=remedy if own else f"{remedy}, or drop --raw and let the builder download it",
        )


def _not_data(begun: bytes) -> tuple[str, str]:
    """What a file is by its beginning, and the remedy, where it is no data; else two empty texts."""
    plain = _MARKUP_COMMENTS.sub(b"", begun).lower()
    if (plain.startswith(b"<?xml") and b"<html" in plain) or not plain:
        plain = b"<html"  # a page in XML, or nothing but a comment so far
    return next(((what, remedy) for mark, what, remedy in _NOT_DATA if plain.startswith(mark)), ("", ""))


def broken_gzip(error: Exception) -> str:
    return f"the gzip data ends or breaks here ({error})"


def problem_of_line(raw: bytes, text: str) -> str:
    """What is wrong with the bytes of a line, or with their text, or ""."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text ({error})"
    if "\0" in text:
        return f"a NUL byte at column {text.index(chr(0)) + 1:,}; expected text without NUL bytes"
    if "\r" in text:
        return (
            f"a carriage return at column {text.index(chr(13)) + 1:,}, inside the line; expected lines that end in "
            "a line feed, with or without a carriage return before it"
        )
    return ""


class OtherJsonError(Exception):
    """Sound JSON, but not the array that was expected."""


def decode(text: str, at: int) -> tuple[Any, int, str]:
    """(value, position after it, what is wrong with it or "") of the JSON value that begins at `at`.

    Python's decoder lets pass what is no JSON or is ambiguous: NaN, a key given twice (the last one wins). Such a
    value is read to its end, with its problem, so that one bad item of an array need not cost the array.

    Raises:
        json.JSONDecodeError: there is no complete value.
        RecursionError: it nests too deeply.
    """
    problems: list[str] = []

    def as_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return object_with_unique_keys(pairs)
        except ValueError as error:
            problems.append(str(error))
            return dict(pairs)

    def constant(name: str) -> None:
        problems.append(f"{name} is no JSON value")

    def integer(digits: str) -> int | None:
        if len(digits) <= _MOST_DIGITS:
            return int(digits)
        problems.append(f"a number has {len(digits):,} digits; expected at most {_MOST_DIGITS:,}")
        return None

    decoder = json.JSONDecoder(object_pairs_hook=as_object, parse_constant=constant, parse_int=integer)
    value, end = decoder.raw_decode(text, at)
    return value, end, "; ".join(problems[:1])


def decode_all(text: str) -> tuple[Any, str]:
    """(value, what is wrong with it or "") of a text that is one JSON value; errors as for `decode`."""
    value, end, problem = decode(text, _blanks(text, 0))
    if _blanks(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, _blanks(text, end))
    return value, problem


def array_start(text: str, key: str) -> int:
    """The position of the first item of the array that the text is, or that the object in it holds under `key`.

    Raises:
        json.JSONDecodeError, RecursionError: as for `decode`.
        OtherJsonError: the text is something else.
    """
    at = _blanks(text, 0)
    opening, what = ("{", f"a JSON object '{{' with the key {key!r}") if key else ("[", "a JSON array '['")
    if text[at : at + 1] != opening:
        raise OtherJsonError(f"got {text[at : at + 60]!r}; expected {what}")
    at = _blanks(text, at + 1)
    if not key:
        return at
    names = []
    while text[at : at + 1] != "}":
        name, at, _ = decode(text, at)
        at = _after(text, at, ":")
        if name == key:
            return _after(text, at, "[")
        names.append(str(name))
        _, at, _ = decode(text, at)
        at = after_item(text, at, "}")
    keys = shortened(", ".join(names) or "no key")
    raise OtherJsonError(f"the JSON object has {keys}; expected the key {key!r}")


def after_item(text: str, at: int, closing: str) -> int:
    """The position of the next item, or of the bracket that closes them all."""
    at = _blanks(text, at)
    return at if text[at : at + 1] == closing else _after(text, at, ",")


def _after(text: str, at: int, mark: str) -> int:
    at = _blanks(text, at)
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, at)
    return _blanks(text, at + 1)


def _blanks(text: str, at: int) -> int:
    return cast(re.Match[str], _BLANKS.match(text, at)).end()


def with_limit(reader: Iterator[list[str]], limit: int) -> Iterator[list[str]]:
    """The reader's rows under another limit of cells, which holds for the whole process: so for no longer than needed.

    A limit around all rows would stay as it is for as long as somebody holds on to a reader that was left halfway.
    """
    while True:
        before = csv.field_size_limit(limit)
        try:
            cells = next(reader)
        except StopIteration:
            return
        finally:
            csv.field_size_limit(before)
        yield cells


def problem_of_cells(header: Sequence[str], cells: Sequence[str]) -> str:
    if len(cells) != len(header):
        return f"got {len(cells)} columns; expected {len(header)}: {', '.join(header)}"
    for name, cell in zip(header, cells, strict=True):
        if len(cell) > _LONGEST_CELL:
            return f"{name}: got {len(cell):,} characters; expected at most {_LONGEST_CELL:,} in a cell"
    return ""

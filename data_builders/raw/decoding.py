"""From the bytes of a raw file to values: gzip, files that are not data, JSON."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import object_with_unique_keys
from data_builders.raw.row import Flaw

_MOST_DIGITS = 4_300  # Python refuses to convert longer numbers; no dataset has one
_TOO_LONG = f"a number has {{:,}} digits; expected at most {_MOST_DIGITS:,}"
_GZIP_MARK = b"\x1f\x8b"
BROKEN_GZIP = "the gzip data ends or breaks here"
AS_UTF8 = "save it as UTF-8 text"
GZIP_ERRORS = (EOFError, gzip.BadGzipFile, zlib.error)
_MARKUP_COMMENTS = re.compile(rb"\A(\s|<!--.*?(-->|\Z))*", re.DOTALL)
_BETWEEN_ITEMS = re.compile(r"[\s,]*")
_SAVE_RAW = "save the raw file, not the page that shows it"
_FETCH_AGAIN = "the server refused or did not know the file when it was fetched: fetch it again"
# (start of the file in lower case, what the file is, the remedy)
_NOT_DATA = (
    *((mark, "a web page (HTML)", _SAVE_RAW) for mark in (b"<!doctype html", b"<html", b"<head", b"<body")),
    (b"<?xml", "a server's answer in XML", _FETCH_AGAIN),
    (b"<error>", "a server's error message (XML)", _FETCH_AGAIN),
    (b"404: not found", "a server's error message", _FETCH_AGAIN),
    (b"version https://git-lfs", "a Git LFS pointer", "get the file itself with 'git lfs pull'"),
    (b"pk\x03\x04", "a zip archive", "unpack it and give the file inside"),
    (_GZIP_MARK, "a gzip file within a gzip file", "unpack it once and give that file"),
)


def damaged(*, own: bool) -> str:
    """Return the remedy for a damaged file, a user's own one or a published one."""
    if own:
        return "the file is damaged, or not what its ending says: fix it, or save it again"
    return "the file is damaged: fetch it again, or drop --raw and let the builder download it"


def open_bytes(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """Open a file for reading, unpacked if its first bytes say that it is a gzip file, whatever its name."""
    with path.open("rb") as source:
        packed = source.read(len(_GZIP_MARK)) == _GZIP_MARK
    return gzip.GzipFile(path) if packed else path.open("rb")


def check_is_data(path: Path, *, own: bool = False) -> None:
    """Reject a file that is empty or no data at all: a web page, an error message, an archive, UTF-16.

    The UserError says what the file is and how it begins. No builder can download a user's `own` file.
    """
    with open_bytes(path) as source:
        try:
            start = source.read(512)
        except GZIP_ERRORS as error:
            raise UserError(f"{path}, line 1: {BROKEN_GZIP} ({error})", remedy=damaged(own=own)) from None
    if not start.strip():
        raise UserError(f"{path}: the file is empty; expected data", remedy=damaged(own=own))
    begun = start.removeprefix(b"\xef\xbb\xbf")
    plain = _MARKUP_COMMENTS.sub(b"", begun).lower()
    if (plain.startswith(b"<?xml") and b"<html" in plain) or not plain:
        plain = b"<html"  # a page in XML, or only a comment so far
    what, remedy = next(((what, remedy) for mark, what, remedy in _NOT_DATA if plain.startswith(mark)), ("", ""))
    found = begun.decode("utf-8", errors="replace")
    # UTF-16, with or without its mark: every second byte of a text in Latin letters is zero.
    if not what and start.count(0) * 4 > len(start):
        what, remedy = "UTF-16 text or binary data", AS_UTF8
        found = start.decode("utf-16-be" if start[:1] in (b"\xfe", b"\0") else "utf-16-le", errors="replace")
    if what:
        raise UserError(
            f"{path}: holds {what}, not data; it begins with {found.strip()[:60]!r}",
            remedy=remedy if own else f"{remedy}, or drop --raw and let the builder download it",
        )


def problem_of_line(raw: bytes, text: str) -> str:
    """Return what is wrong with a line, given as bytes and as text; "" if nothing is."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 text ({error}); {AS_UTF8}"
    for char, name in (("\0", "NUL byte"), ("\r", "carriage return")):
        if char in text:
            return f"a {name} at column {text.index(char) + 1:,}; expected UTF-8 text with line feeds between lines"
    return ""


def decode_json(text: str) -> Any:
    """Return the JSON value that the text is.

    Python's decoder accepts NaN, and the last of two equal keys. A `Flaw` takes the place of such a value, so that one
    bad item of an array does not cost the array.

    Raises:
        json.JSONDecodeError: it is not JSON, or breaks off.
        RecursionError: it nests too deeply.
    """
    return json.loads(
        text,
        object_pairs_hook=_as_object,
        parse_constant=lambda name: Flaw(f"{name} is not a JSON value"),
        parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else Flaw(_TOO_LONG.format(len(digits))),
    )


def _as_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | Flaw:
    try:
        return object_with_unique_keys(pairs)
    except ValueError as error:
        return Flaw(str(error), dict(pairs))


def lines_of_items(text: str) -> list[int]:
    """Return the line in which each item of a JSON array begins; the text must be valid JSON."""
    decoder, lines = json.JSONDecoder(parse_int=str), list[int]()
    line, counted, at = 1, 0, text.index("[") + 1
    while text[at := cast(re.Match[str], _BETWEEN_ITEMS.match(text, at)).end()] != "]":
        line, counted = line + text.count("\n", counted, at), at
        lines.append(line)
        _, at = decoder.raw_decode(text, at)
    return lines

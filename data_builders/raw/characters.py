"""What a file's making left in its texts: HTML entities, doubled quotation marks, control and misread characters.

Published files were scraped from pages, passed through CSV and read in the wrong encoding, so that a text reads
`it&#x27;s`, `""so-called""` or `growth鈥攁s`. No reader should see that, so samples are made of decoded texts
(`RawInput.sample`), and how is recorded in their meta.
Positions that a raw row gives count the raw text; so decoding comes after they are used.
"""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

DECODED = "decoded"  # the key of `meta`
# Keys of `meta` that quote the context, to be found in it: answers that are all required, what refined contexts keep.
QUOTING = ("spans", "evidence", "events", "chain")
# What was decoded, as `meta` and the manifest name it.
ENTITIES, QUOTES, CONTROLS, MISREAD = "HTML entities", "doubled quotes", "control characters", "misread characters"

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_MOST_LAYERS = 3  # "&amp;amp;quot;": a text that was encoded more than once
# CSV writes a quotation mark in a quoted cell twice, and again each time the file is converted.
_MANY = re.compile(r'"{4,}|\'{4,}')
# `""word … word""`; not `""`, the place of a title that was lost, and not `"on "Buffy""`, a quotation in another.
_PAIR = re.compile(r'(?<!")""(?=\w)([^"]+)(?<=\S)""(?!")')
_KEPT_CONTROLS = "\n"
# UTF-8 that was read as GBK: "—a" became "鈥攁", "é" in a word one character. A dash's last byte that could make no
# character with what follows was dropped.
_MISREAD_MARK = re.compile("鈥[\u4e00-\u9fff]|鈥")
_MISREAD_LETTER = re.compile("(?<=[A-Za-z])[\u4e00-\u9fff](?![\u4e00-\u9fff])")


def decode_characters(text: str) -> tuple[str, frozenset[str]]:
    """The text as it was meant, and which of ENTITIES, QUOTES, CONTROLS and MISREAD it held."""
    decoded, found = text, set()
    for what, step in (
        (ENTITIES, _without_entities),
        (QUOTES, _without_doubled_quotes),
        (CONTROLS, _without_controls),
        (MISREAD, _without_misread),
    ):
        before, decoded = decoded, step(decoded)
        if decoded != before:
            found.add(what)
    return (decoded.strip(), frozenset(found)) if found else (text, frozenset())


def decode_all_texts(value: Any) -> tuple[Any, frozenset[str]]:
    """The same for every text in a value of lists, dicts and texts; keys of dicts stay."""
    if isinstance(value, str):
        return decode_characters(value)
    if isinstance(value, dict):
        items, held = decode_all_texts(list(value.values()))
        return dict(zip(value, items, strict=True)), held
    if isinstance(value, list):
        parts = [decode_all_texts(item) for item in value]
        return [item for item, _ in parts], frozenset().union(*(held for _, held in parts))
    return value, frozenset()


def _without_entities(text: str) -> str:
    """Only what ends in ";" is an entity here: `html.unescape` would also see one in "R&D" or "&notable"."""
    for _ in range(_MOST_LAYERS):
        before, text = text, _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
        if text == before:
            break
    return text


def _without_doubled_quotes(text: str) -> str:
    return _PAIR.sub(r'"\1"', _MANY.sub(lambda run: run.group()[0], text))


def _without_controls(text: str) -> str:
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", " ")
    return "".join(char for char in text if char in _KEPT_CONTROLS or unicodedata.category(char) != "Cc")


def _without_misread(text: str) -> str:
    if text.isascii():
        return text
    text = _MISREAD_MARK.sub(lambda found: _read_again(found.group()) or found.group().replace("鈥", "—"), text)
    return _MISREAD_LETTER.sub(lambda found: _latin(_read_again(found.group())) or found.group(), text)


def _read_again(text: str) -> str:
    """Characters of GBK as the UTF-8 that their bytes were; empty where these are none."""
    try:
        return text.encode("gbk").decode("utf-8")
    except UnicodeError:
        return ""


def _latin(text: str) -> str:
    return text if "\u00a0" <= text <= "\u00ff" else ""

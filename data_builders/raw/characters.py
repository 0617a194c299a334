"""Decode HTML entities, doubled quotation marks, control characters and misread characters in texts.

Published files were scraped from pages, converted to CSV and read in the wrong encoding, which leaves `it&#x27;s`,
`""so-called""` or `growth鈥攁s`. Samples have the decoded texts, and their meta says what was decoded. Positions in a
raw row refer to the raw text, so decoding comes after they are used.
"""

import html
import re
import unicodedata
from typing import Any

DECODED = "decoded"  # the key of `meta`
# Keys of `meta` that quote the context and are looked up in it.
QUOTING = ("spans", "evidence", "events", "chain")
# Names of what was decoded, in `meta` and in the manifest.
ENTITIES, QUOTES, CONTROLS, MISREAD = "HTML entities", "doubled quotes", "control characters", "misread characters"

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_MOST_LAYERS = 3  # "&amp;amp;quot;": a text that was encoded more than once
# CSV doubles a quotation mark in a quoted cell, again with each conversion of the file.
_MANY = re.compile(r'"{4,}|\'{4,}')
# `""word … word""`; not `""`, which is a lost title, and not `"on "Buffy""`, a quotation in another.
_PAIR = re.compile(r'(?<!")""(?=\w)([^"]+)(?<=\S)""(?!")')
# UTF-8 that was read as GBK: "—a" became "鈥攁", and "é" in a word one character. The last byte of a dash was dropped
# if it formed no character with the next byte.
_MISREAD_MARK = re.compile("鈥[\u4e00-\u9fff]|鈥")
_MISREAD_LETTER = re.compile("(?<=[A-Za-z])[\u4e00-\u9fff](?![\u4e00-\u9fff])")


def decode_characters(text: str) -> tuple[str, frozenset[str]]:
    """Return the decoded text, and which of ENTITIES, QUOTES, CONTROLS and MISREAD were in it."""
    decoded, kinds = text, set()
    for kind, step in _STEPS.items():
        before, decoded = decoded, step(decoded)
        if decoded != before:
            kinds.add(kind)
    return (decoded.strip(), frozenset(kinds)) if kinds else (text, frozenset())


def decode_all_texts(value: Any) -> tuple[Any, frozenset[str]]:
    """Decode every text in a value of lists, dicts and texts; keys of dicts stay as they are."""
    if isinstance(value, str):
        return decode_characters(value)
    if isinstance(value, dict):
        items, kinds = decode_all_texts(list(value.values()))
        return dict(zip(value, items, strict=True)), kinds
    if isinstance(value, list):
        parts = [decode_all_texts(item) for item in value]
        return [item for item, _ in parts], frozenset().union(*(kinds for _, kinds in parts))
    return value, frozenset()


def _without_entities(text: str) -> str:
    """Decode entities that end in ";": `html.unescape` would also decode part of "R&D" or "&notable"."""
    for _ in range(_MOST_LAYERS if "&" in text else 0):
        before, text = text, _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
        if text == before:
            break
    return text


def _without_doubled_quotes(text: str) -> str:
    if '""' not in text and "''''" not in text:
        return text
    return _PAIR.sub(r'"\1"', _MANY.sub(lambda run: run.group()[0], text))


def _without_controls(text: str) -> str:
    if text.isprintable():
        return text
    text = text.replace("\r\n", "\n").replace("\t", " ")
    return "".join(char for char in text if char == "\n" or unicodedata.category(char) != "Cc")


def _without_misread(text: str) -> str:
    if text.isascii():
        return text
    text = _MISREAD_MARK.sub(lambda match: _read_again(match.group()) or match.group().replace("鈥", "—"), text)
    return _MISREAD_LETTER.sub(
        lambda match: letter if "\u00a0" <= (letter := _read_again(match.group())) <= "\u00ff" else match.group(), text
    )


def _read_again(text: str) -> str:
    """Return GBK characters as the UTF-8 that their bytes were; empty if they were not UTF-8."""
    try:
        return text.encode("gbk").decode("utf-8")
    except UnicodeError:
        return ""


_STEPS = {
    ENTITIES: _without_entities,
    QUOTES: _without_doubled_quotes,
    CONTROLS: _without_controls,
    MISREAD: _without_misread,
}

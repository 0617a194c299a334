"""Find the options that a text names: by letter, by the option's own words, or by both.

Option texts may hold `;`, `(A)` or one another, so nothing is split at separators. If a letter's option text follows
the letter, it is consumed as a whole; shorter option texts are looked for only outside longer ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from eval.score.metrics import normalise, option_key

# "(B)" anywhere; "B." "B)" "B:" where an entry of a list can begin; "option B".
_LABEL = re.compile(
    r"(?<!\w)\(([A-Za-z])\)|(?:^|(?<=[;,\n]))[ \t*]*([A-Z])[.):](?=\s|$)|\b[Oo]ption\s+([A-Z])\b(?![.]\w)"
)
_ONLY_LETTERS = re.compile(r"(?:[\W_]|\band\b)*[A-Z](?:(?:[\W_]|\band\b)+[A-Z])*[\W_]*")
_ONE_LETTER = re.compile(r"[\W_]*[A-Za-z][\W_]*")
_ENTRY_END = r"(?=[\s*.]*(?:$|[;,\n]|\([A-Za-z]\)))"


def find_options(text: str, options: Sequence[str], *, several: bool) -> tuple[str, ...]:
    """Return the options that `text` names, in its order; none if a letter is next to another option's text.

    The options are in the order of their letters. Unless `several` may be chosen, a text that names two has no answer.
    """
    chosen = _whole(text, options)
    if not chosen and (_ONLY_LETTERS.fullmatch(text) or _ONE_LETTER.fullmatch(text)):  # `B`, `A, C`, `A and C`
        indices = map(_index, re.findall(r"\b[A-Za-z]\b", text))
        chosen = list(dict.fromkeys(index for index in indices if index < len(options)))
    if not chosen:
        labelled = _labelled(text, options)
        if labelled is None:
            return ()
        chosen = labelled or _contained(text, options)
    if not several and len(chosen) > 1:
        return ()
    return tuple(options[index] for index in chosen)


def starts_with_label(line: str) -> bool:
    """Return whether a line begins like an entry of a list of options, `(A) …` or `A. …`."""
    match = _LABEL.search(line)
    return match is not None and not line[: match.start()].strip("*- ")


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _index(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def _whole(text: str, options: Sequence[str]) -> list[int]:
    """Return the one option that is the whole text, with or without its letter."""
    plain = text.strip().removesuffix(".").casefold()
    # Normalising would remove the letter of "(A) …" as an article; the labelled form is read elsewhere.
    key = None if starts_with_label(text) else option_key(text)
    exact, near = [], []
    for index, option in enumerate(options):
        words = option.strip().removesuffix(".").casefold()
        if plain in (words, f"({_letter(index)}) {words}".casefold()):
            exact.append(index)
        if key in (option_key(option), option_key(f"{_letter(index)} {option}")):
            near.append(index)
    return exact if len(exact) == 1 else near if len(near) == 1 else []


def _labelled(text: str, options: Sequence[str]) -> list[int] | None:
    """Return the options whose letters are in the text; None if a letter and the words after it disagree."""
    chosen: list[int] = []
    position = 0
    while match := _LABEL.search(text, position):
        position = match.end()
        index = _index(match[1] or match[2] or match[3])
        if index >= len(options):
            continue
        own = _text_pattern(options[index]).match(text, position)
        for other, option in enumerate(options):
            entry = _entry_pattern(option).match(text, position)
            if other != index and entry and (own is None or entry.end() > own.end()):
                return None
        if index not in chosen:
            chosen.append(index)
        position = own.end() if own else position
    return chosen


@lru_cache(maxsize=4096)
def _text_pattern(option: str) -> re.Pattern[str]:
    words = r"\s+".join(re.escape(word) for word in option.split())
    return re.compile(rf"[\s*_:.]*{words}(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def _entry_pattern(option: str) -> re.Pattern[str]:
    return re.compile(_text_pattern(option).pattern + _ENTRY_END, re.IGNORECASE)


def _contained(text: str, options: Sequence[str]) -> list[int]:
    """Return the options whose normalised words are in the text, outside those of a longer option."""
    by_key: dict[str, list[int]] = {}
    for index, option in enumerate(options):
        if normalise(option):
            by_key.setdefault(option_key(option), []).append(index)
    places: dict[int, int] = {}  # option → where it stands first
    haystack = f" {option_key(text)} "
    for key in sorted(by_key, key=len, reverse=True):
        place = haystack.find(f" {key} ")
        if place >= 0:
            places.update(dict.fromkeys(by_key[key], place))
            # The length stays the same, so that places stay comparable.
            haystack = haystack.replace(f" {key} ", f" {'|' * len(key)} ")
    return sorted(places, key=lambda index: places[index])

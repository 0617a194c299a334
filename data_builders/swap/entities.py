"""Other entities of an answer's type from word lists (`entities.yaml`): countries, cities, persons, organisations.

A type is known by the word that a question asks for (`Which country …`), by the answer's own words (`… University`),
or by the list that has it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from d2e_sft.util.files import load_package_yaml
from data_builders.text.stems import STOP_WORDS

_LISTS = load_package_yaml(Path(__file__).with_suffix(".yaml"))


def _entries(text: str) -> tuple[str, ...]:
    return tuple(" ".join(entry.split()) for entry in text.split(","))


_PAIRS = [entry.rpartition(" ") for entry in _entries(_LISTS["countries"])]
DEMONYMS = {country: native for country, _, native in _PAIRS}
_NATIVES = tuple(DEMONYMS.values())
TITLES = frozenset(_entries(_LISTS["titles"]))
TYPES = frozenset(_entries(_LISTS["types"]))
_GENERAL = frozenset(_entries(_LISTS["general"]))
_FURTHER_COUNTRIES = frozenset(_entries(_LISTS["further_countries"]))
NATIONS = frozenset(_NATIVES)
_LANGUAGES, _CITIES, _MEN, _WOMEN, _SURNAMES = (
    _entries(_LISTS[name]) for name in ("languages", "cities", "men", "women", "surnames")
)
_ENTRIES = {"languages": _LANGUAGES, "countries": tuple(DEMONYMS), "natives": _NATIVES, "cities": _CITIES}
_FIRST_NAMES = frozenset({*_MEN, *_WOMEN, *_entries(_LISTS["further_names"])})
_ASKED = {kind: frozenset(_entries(text)) for kind, text in _LISTS["asked"].items()}
NAMES = frozenset({*_FIRST_NAMES, *DEMONYMS, *NATIONS, *_CITIES})
_NO_PERSON = frozenset({*TYPES, *_entries(_LISTS["groups"]), *DEMONYMS, *NATIONS, *_CITIES}) - _FIRST_NAMES
_BY_FIRST_NAME = frozenset({"King", "Queen", "Prince", "Princess", "Pope", "Sultan", "Emperor", "Empress", "Tsar"})
_GENDERS = ("she|her|actress|wife|queen|mother|daughter|sister", "he|his|him|actor|husband|king|father|son|brother")
_NEAR = 60  # characters
_MOST = 12  # candidates of a type
_NO_NAME = re.compile(r"[\d&/,;:\"()\[\]]| \.|\.\S")
_NUMERAL = re.compile(r"[IVX]+|Jr\.?|Sr\.?")
_INITIAL = re.compile(r"[A-Z]\.?")


def type_of(answer: str, asked: str, context: str) -> str:
    """Return the type of a named entity: the name of a list, or the word of an organisation's type; "" if unknown.

    Args:
        asked: What the question asks for, see `asked_for`.
        context: Tells persons from what is called `the …`.
    """
    parts = answer.split()
    if not parts or not (_is_name_word(parts[0]) and _is_name_word(parts[-1])) or _NO_NAME.search(answer):
        return ""
    kinds = {
        "languages": asked in _ASKED["languages"] and answer in (*_NATIVES, *_LANGUAGES),
        "countries": answer in DEMONYMS or answer in _FURTHER_COUNTRIES,
        "natives": answer in NATIONS,
        "cities": answer in _CITIES or (asked in _ASKED["cities"] and len(parts) < 3 and TYPES.isdisjoint(parts)),
    }
    if found := next((kind for kind, holds in kinds.items() if holds), ""):
        return found
    if words := [part for part in parts if part in TYPES and len(parts) > 1]:
        return words[-1]
    return "persons" if _is_person(parts, asked, context) else ""


def others_of_type(answer: str, asked: str, context: str, rng: random.Random) -> list[str]:
    """Return other entities of the answer's type in random order; none if its type has no list.

    Args:
        asked, context: As for `type_of`; the context also shows whether a person is a man or a woman.
    """
    kind = type_of(answer, asked, context)
    if kind == "persons":
        return _persons(answer.split(), _around(answer, context), rng)
    if kind not in _ENTRIES:
        return _organisations(answer.split(), rng) if kind else []
    return [] if re.search(rf"\b[Tt]he {answer}\b", context) else _drawn(_ENTRIES[kind], rng)


def _is_person(parts: list[str], asked: str, context: str) -> bool:
    """Whether the question asks for a person; if it does not say so (`who`), the name itself must look like one."""
    if not _NO_PERSON.isdisjoint([*parts, parts[-1].removesuffix("s")]) or re.search(
        rf"\b(?:[Tt]he|[Ii]n) {re.escape(' '.join(parts))}", context
    ):
        return False
    if asked in _ASKED["persons"]:
        return True
    shows = parts[0] in TITLES or (len(parts) > 1 and (parts[0] in _FIRST_NAMES or bool(_INITIAL.fullmatch(parts[1]))))
    is_full_name = len(parts) in (2, 3) and all(part[0].isupper() and not part.isupper() for part in parts)
    return (shows and (asked in _ASKED["open"] or " " in asked)) or (is_full_name and asked in ("who", "whose"))


def _drawn(entries: tuple[str, ...], rng: random.Random) -> list[str]:
    return rng.sample(entries, min(_MOST, len(entries)))


def _is_name_word(part: str) -> bool:
    return part[0].isupper() and part.casefold() not in STOP_WORDS


def _organisations(parts: list[str], rng: random.Random) -> list[str]:
    """The same type with another place or name: `Ashford Works` for `Darlington Works`."""
    if len(parts) < 2 or (parts[-1] not in TYPES and (parts[0] not in TYPES or parts[1] != "of")):
        return []
    for place, part in enumerate(parts):
        for entries in (_CITIES, tuple(DEMONYMS), _NATIVES):
            if part in entries:
                return [_with(parts, place, other) for other in _drawn(entries, rng) if other != part]
    if parts[-1] in TYPES and parts[0] not in TYPES | _GENERAL and len(parts) < 5:
        return [_with(parts, 0, other) for other in _drawn(_SURNAMES, rng)]
    return []


def _with(parts: list[str], place: int, other: str) -> str:
    return " ".join([*parts[:place], other, *parts[place + 1 :]])


def _around(answer: str, context: str) -> str:
    """The words near the mentions of a person, which show whether it is a woman."""
    places = [found.span() for found in re.finditer(re.escape(answer), context)]
    return " ".join(context[max(0, start - _NEAR) : end + 2 * _NEAR] for start, end in places)


def _persons(parts: list[str], near: str, rng: random.Random) -> list[str]:
    """Names of as many words; titles, initials and numerals stay. Further down the list the last name stays, too."""
    start = next((place for place, part in enumerate(parts) if part not in TITLES), len(parts))
    end = len(parts) - (1 if _NUMERAL.fullmatch(parts[-1]) and len(parts) - start > 1 else 0)
    core = parts[start:end]
    if not core or len(core) > 3 or not all(part[0].isupper() for part in core):
        return []
    before, after = parts[:start], parts[end:]
    first = _drawn(_WOMEN if _is_woman(core[0], near) else _MEN, rng)
    last = _drawn(_SURNAMES, rng)
    if len(core) == 1:
        names = first if after or not _BY_FIRST_NAME.isdisjoint(before) else last if before else []
        return [" ".join([*before, name, *after]) for name in names]
    middle = [part if _INITIAL.fullmatch(part) else first.pop() for part in core[1:-1]]
    pairs = [*zip(first, last, strict=False), *((name, core[-1]) for name in first)]
    return [" ".join([*before, one, *middle, two, *after]) for one, two in pairs]


def _is_woman(first_name: str, near: str) -> bool:
    if first_name in _FIRST_NAMES:
        return first_name in _WOMEN
    counts = (re.findall(rf"\b(?:{words})\b", near, re.IGNORECASE) for words in _GENDERS)
    she, he = map(len, counts)
    return she > he

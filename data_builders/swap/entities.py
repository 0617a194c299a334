"""What kind of thing an answer is, and other things of its kind from word lists: entities, numbers, years and dates.

Answers of one kind can replace each other: two years, two numbers with as many digits and the same unit, two
capitalised names after `Which club …`, two single words after `Where …`. The meaning of words is not known here, so a
kind is narrow if the shape says little. An entity may also have a type with a list (`entities.yaml`). It is known by
the word that a question asks for (`Which country …`), by the answer's own words (`… University`), or by the list.
"""

import calendar
import random
import re
from itertools import chain
from pathlib import Path

from d2e_sft.util.answers import CLAUSE_VERBS, WORD, asked_for, is_capitalised, words
from d2e_sft.util.files import load_package_yaml
from data_builders.text.words import STOP_WORDS, words_of

# Kinds: by its shape, by the question, and by how the context writes it.

YEAR = re.compile(r"\b(?:1\d|20)\d\d\b")
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE = re.compile(rf"\b{_MONTH}\b(?=.*\d)|\b\d+\D+{_MONTH}\b")
_BESIDE_MONTH = re.compile(rf"(?:(\w+) )?\b{_MONTH}\b(?: (\w+))?")
_NUMBER = re.compile(r"\W?\d\S*(?: \S+){0,2}")  # with its unit
_MOST_CONTENT_WORDS = {"name": 6, "phrase": 3}

Kind = tuple[str, ...]


def kind_of(answer: str, question: str, seen: str) -> Kind | None:
    """Return the kind of an answer; None if it is not an entity (a clause, `nothing`), so a swap would make no sense.

    The first part is that of `shape_of`; answers are of one kind if all parts are equal. `seen` are the dataset's
    contexts as `plain` gives them; they show how the answer is written elsewhere.
    """
    shape, parts, content = shape_of(answer), answer.split(), _content(answer)
    if not is_entity(answer):
        return None
    if shape in ("year", "date"):
        form = re.sub(r"\d+", "9", re.sub(_MONTH, "M", YEAR.sub("Y", answer)))
        return (shape, form)
    if shape == "number":
        in_words = answer.casefold() in words_of("number_words")
        return (shape, "in words" if in_words else re.sub(r"\d", "9", answer))
    if not content or (shape == "phrase" and is_clause(answer)) or len(content) > _MOST_CONTENT_WORDS[shape]:
        return None
    asked, key = asked_for(question), plain(answer)
    after_the = f" the {key}" in seen
    plural = re.search(r"[^s]s$", content[-1]) is not None
    if shape == "phrase":
        small = {part: part.casefold() for part in parts if part.casefold() in STOP_WORDS}
        form = " ".join(small.get(part) or ("A" if is_capitalised(part) else "_") for part in parts)
        return (shape, asked, form, *_flags({"plural": plural, "after the": after_the}))
    flags = {
        "after the": after_the,
        "with the": parts[0].casefold() == "the",
        "quoted": answer[0] in "\"'“‘",
        "with a comma": "," in answer,
        "with a preposition": any(part.casefold() in STOP_WORDS for part in parts[1:]),
        "plural": len(parts) > 1 and plural,
    }
    if asked == "who":
        # `who` also asks for countries and teams; but a person mostly has two names, and nothing is in a person.
        flags |= {"one word": len(parts) == 1, "place": after_the or f" in {key}" in seen}
    return (shape, asked, *_flags(flags))


def _flags(flags: dict[str, bool]) -> list[str]:
    return [name if holds else "" for name, holds in flags.items()]


def wider(kind: Kind) -> Kind:
    """Return the kind without the number of words, inner small words and commas: `the shop` and `the cold store`."""
    if kind[0] == "phrase":
        shape, asked, form, *flags = kind
        first = form.split()[0]
        return (shape, asked, "" if first in "A_" else first, *flags)
    return tuple(part for place, part in enumerate(kind) if place not in (5, 6)) if kind[0] == "name" else kind


def is_entity(answer: str) -> bool:
    """Return whether the answer may name something, unlike `nothing` or `yes`."""
    is_word = bool(words(answer)) and answer[-1] not in ",;:"
    return is_word and answer.strip().casefold() not in words_of("not_entities")


def is_clause(answer: str) -> bool:
    """Return whether a verb makes the answer a clause; `May` of a date and `Will` of a name are no verbs."""
    has_names = shape_of(answer) in ("name", "date")
    return not CLAUSE_VERBS.isdisjoint(WORD.findall(answer) if has_names else words(answer))


def shape_of(answer: str) -> str:
    """Return `year`, `date`, `number`, `name` (all words but `of`, `the` … have capitals) or `phrase`."""
    if YEAR.fullmatch(answer):
        return "year"
    if _DATE.search(answer):
        return "date"
    if _NUMBER.fullmatch(answer) or answer.casefold() in words_of("number_words"):
        return "number"
    return "name" if all(map(is_capitalised, _content(answer))) else "phrase"


def in_a_persons_name(entity: str, texts: str) -> bool:
    """Return whether texts have an entity that is the name of a month beside a capitalised name: `May Smith`."""
    months = _BESIDE_MONTH.finditer(texts) if re.fullmatch(_MONTH, entity) else ()
    return any(entity in match[0].split() and _has_name(match) for match in months)


def _has_name(month: re.Match[str]) -> bool:
    """Whether a word beside a month belongs to a name, unlike that of `In May Ann came` or `Monday, May 4`."""
    words_beside = [word for word in month.groups() if word and word[0].isupper()]
    return (month[1] or "").casefold() not in _BEFORE_MONTHS and any(
        word.casefold() not in _NO_NAMES for word in words_beside
    )


def plain(text: str) -> str:
    """Return the text in lower case with single blanks, as `kind_of` needs it."""
    return " ".join(text.casefold().split())


def without_names(question: str) -> str:
    """Return the question with `_` for names and numbers: `How old is the _` for `How old is the Grand Hotel?`."""
    content = set(_content(question))
    masked = ("_" if part in content and is_capitalised(part) else part.casefold() for part in question.split())
    return re.sub(r"_(?: _)+", "_", " ".join(masked))


def _content(answer: str) -> list[str]:
    return [part for part in answer.split() if part.casefold() not in STOP_WORDS]


# Types with a list: countries, cities, persons, organisations.

_LISTS = load_package_yaml(Path(__file__).with_suffix(".yaml"))


def _entries(text: str) -> tuple[str, ...]:
    return tuple(" ".join(entry.split()) for entry in text.split(","))


_PAIRS = [entry.rpartition(" ") for entry in _entries(_LISTS["countries"])]
DEMONYMS = {country: native for country, _, native in _PAIRS}
TITLES, TYPES, _GENERAL = (frozenset(_entries(_LISTS[name])) for name in ("titles", "types", "general"))
_CITIES, _MEN, _WOMEN, _SURNAMES = (_entries(_LISTS[name]) for name in ("cities", "men", "women", "surnames"))
_ENTRIES = {
    "languages": _entries(_LISTS["languages"]),
    "countries": tuple(DEMONYMS),
    "natives": tuple(DEMONYMS.values()),
    "cities": _CITIES,
}
NATIONS = frozenset(_ENTRIES["natives"])
_COUNTRIES = frozenset({*DEMONYMS, *_entries(_LISTS["further_countries"])})
_FIRST_NAMES = frozenset({*_MEN, *_WOMEN, *_entries(_LISTS["further_names"])})
_ASKED = {kind: frozenset(_entries(text)) for kind, text in _LISTS["asked"].items()}
NAMES = frozenset({*_FIRST_NAMES, *DEMONYMS, *NATIONS, *_CITIES})
_NO_PERSON = (TYPES | NAMES).union(_entries(_LISTS["groups"])) - _FIRST_NAMES
_BY_FIRST_NAME = frozenset({"King", "Queen", "Prince", "Princess", "Pope", "Sultan", "Emperor", "Empress", "Tsar"})
_GENDERS = ("she|her|actress|wife|queen|mother|daughter|sister", "he|his|him|actor|husband|king|father|son|brother")
_NEAR = 60  # characters before a mention, and twice as many after it
_MOST = 12  # candidates of a type
_NO_NAME = re.compile(r"[\d&/,;:\"()\[\]]| \.|\.\S")
_NUMERAL = re.compile(r"[IVX]+|Jr\.?|Sr\.?")
_INITIAL = re.compile(r"[A-Z]\.?")


def type_of(answer: str, asked: str, context: str) -> str:
    """Return the type of a named entity: the name of a list, or the word of an organisation's type; "" if unknown.

    `asked` is that of `asked_for`; the context tells persons from what is called `the …`.
    """
    parts = answer.split()
    is_name = parts and all(part[0].isupper() and part.casefold() not in STOP_WORDS for part in (parts[0], parts[-1]))
    if not is_name or _NO_NAME.search(answer):
        return ""
    types = {
        "languages": asked in _ASKED["languages"] and answer in (*NATIONS, *_ENTRIES["languages"]),
        "countries": answer in _COUNTRIES,
        "natives": answer in NATIONS,
        "cities": answer in _CITIES or (asked in _ASKED["cities"] and len(parts) < 3 and TYPES.isdisjoint(parts)),
    }
    types |= {part: True for part in reversed(parts) if part in TYPES and len(parts) > 1}
    types["persons"] = _is_person(parts, asked, context)
    return next((name for name, holds in types.items() if holds), "")


def others_of_type(answer: str, asked: str, context: str, rng: random.Random) -> list[str]:
    """Return other entities of the answer's type in random order; none if its type has no list.

    The context also shows whether a person is a man or a woman.
    """
    kind = type_of(answer, asked, context)
    if kind == "persons":
        return _persons(answer, context, rng)
    if kind not in _ENTRIES:
        return _organisations(answer.split(), rng) if kind else []
    return [] if re.search(rf"\b[Tt]he {answer}\b", context) else _drawn(_ENTRIES[kind], rng)


def _drawn(entries: tuple[str, ...], rng: random.Random) -> list[str]:
    return rng.sample(entries, min(_MOST, len(entries)))


def _is_person(parts: list[str], asked: str, context: str) -> bool:
    """Whether the question asks for a person; if it does not say so (`who`), the name itself must look like one."""
    called_the = re.search(rf"\b(?:[Tt]he|[Ii]n) {re.escape(' '.join(parts))}", context)
    if called_the or not _NO_PERSON.isdisjoint([*parts, parts[-1].removesuffix("s")]):
        return False
    if asked in _ASKED["persons"]:
        return True
    shows = parts[0] in TITLES or (len(parts) > 1 and (parts[0] in _FIRST_NAMES or bool(_INITIAL.fullmatch(parts[1]))))
    is_full_name = len(parts) in (2, 3) and all(part[0].isupper() and not part.isupper() for part in parts)
    return (shows and (asked in _ASKED["open"] or " " in asked)) or (is_full_name and asked in ("who", "whose"))


def _persons(answer: str, context: str, rng: random.Random) -> list[str]:
    """Names of as many words; titles, initials and numerals stay. Further down the list the last name stays, too."""
    parts = answer.split()
    start = next((place for place, part in enumerate(parts) if part not in TITLES), len(parts))
    end = len(parts) - (1 if _NUMERAL.fullmatch(parts[-1]) and len(parts) - start > 1 else 0)
    before, core, after = parts[:start], parts[start:end], parts[end:]
    if not core or len(core) > 3 or not all(part[0].isupper() for part in core):
        return []
    first = _drawn(_WOMEN if _is_woman(core[0], answer, context) else _MEN, rng)
    last = _drawn(_SURNAMES, rng)
    if len(core) == 1:
        names = first if after or not _BY_FIRST_NAME.isdisjoint(before) else last if before else []
        return [" ".join([*before, name, *after]) for name in names]
    middle = [part if _INITIAL.fullmatch(part) else first.pop() for part in core[1:-1]]
    pairs = [*zip(first, last, strict=False), *((name, core[-1]) for name in first)]
    return [" ".join([*before, name, *middle, surname, *after]) for name, surname in pairs]


def _is_woman(first_name: str, answer: str, context: str) -> bool:
    """Whether a first name, or more of the words near the mentions of the person, are a woman's."""
    if first_name in _FIRST_NAMES:
        return first_name in _WOMEN
    places = [match.span() for match in re.finditer(re.escape(answer), context)]
    nearby = " ".join(context[max(0, start - _NEAR) : end + 2 * _NEAR] for start, end in places)
    she, he = (len(re.findall(rf"\b(?:{gendered})\b", nearby, re.IGNORECASE)) for gendered in _GENDERS)
    return she > he


def _organisations(parts: list[str], rng: random.Random) -> list[str]:
    """The same type with another place or name: `Ashford Works` for `Darlington Works`."""
    if parts[-1] not in TYPES and (parts[0] not in TYPES or parts[1] != "of"):
        return []
    for place, part in enumerate(parts):
        for entries in (_CITIES, _ENTRIES["countries"], _ENTRIES["natives"]):
            if part in entries:
                choices = [entry for entry in _drawn(entries, rng) if entry != part]
                return [" ".join([*parts[:place], entry, *parts[place + 1 :]]) for entry in choices]
    if parts[-1] in TYPES and parts[0] not in TYPES | _GENERAL and len(parts) < 5:
        return [" ".join([surname, *parts[1:]]) for surname in _drawn(_SURNAMES, rng)]
    return []


# Numbers: another number, year or date in the place of the only one of an answer. Everything else of the answer stays,
# its unit, its month and year, how many digits and zeros the number has, so the other answer fits.

_ONE_NUMBER = re.compile(r"(?<![\w.,-])[$€£¥]?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(st|nd|rd|th)?(?![\w-]|[.,/:]\d)")
_MONTHS = (list(calendar.month_name)[1:], list(calendar.month_abbr)[1:])
_DAYS = list(calendar.day_name)
_BEFORE_MONTHS = frozenset(("early", "every", "in", "last", "late", "mid", "next", "since", "until"))
_NO_NAMES = STOP_WORDS.union(form.casefold() for form in (*chain(*_MONTHS), *_DAYS))
# Number words that can replace each other.
_WORDS = (
    ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
)
_TEENS = ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_ORDINALS = (*_WORDS[2], "eleventh", "twelfth", *(f"{teen}th" for teen in _TEENS))
_VALUES = {word: value for value, word in enumerate(("one", *_WORDS[0], *_TEENS), 1)}
_VALUES |= {word: value for value, word in enumerate(_ORDINALS, 1)}
_VALUES |= {form: 10 * ten for ten, word in enumerate(_WORDS[1], 2) for form in (word, f"{word[:-1]}ieth")}
_UNDER_TEN = "|".join(("one", *_WORDS[0][:8], *_WORDS[2][:9]))
_ANY_NUMBER = re.compile(
    r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:st|nd|rd|th)?|\d+(?:st|nd|rd|th)\b)"
    rf"|\b(?:(?:{'|'.join(_WORDS[1])})[ -](?:{_UNDER_TEN})|{'|'.join(set(_VALUES) - {'one'})})\b",
    re.IGNORECASE,
)
_YEARS_AWAY = 10
_TRIES = 12


def other_numbers(answer: str, rng: random.Random, asked: str = "") -> list[str]:
    """Return the answer with another number, year or date in random order; none if it has no single number.

    `asked` is that of `asked_for`. The name of a month is no date in a person's name, or if the question is `who`.
    """
    months = [form for forms in _MONTHS for form in forms if re.search(rf"\b{form}\b", answer)]
    if months and (asked in ("who", "whose") or any(map(_has_name, _BESIDE_MONTH.finditer(answer)))):
        return []
    years = YEAR.findall(answer)
    numbers = [match for match in _ONE_NUMBER.finditer(answer) if not YEAR.fullmatch(match[1])]
    if months:
        return _other_dates(answer, months, numbers, rng)
    in_words = [word for word in re.findall(r"[A-Za-z]+", answer) if any(word.lower() in group for group in _WORDS)]
    digits = re.findall(r"\d+", re.sub("[,.]", "", answer))
    if len(numbers) + len(years) + len(in_words) != 1 or len(digits) + len(in_words) != 1:
        return rng.sample([day for day in _DAYS if day != answer], 6) if answer in _DAYS else []
    if years:
        nearby = [int(years[0]) + step for step in range(-_YEARS_AWAY, _YEARS_AWAY + 1) if step]
        return [answer.replace(years[0], str(year)) for year in rng.sample(nearby, len(nearby))]
    if not in_words:
        return _other_values(answer, numbers[0], rng)
    word = in_words[0]
    group = next(group for group in _WORDS if word.lower() in group)
    choices = [new for new in rng.sample(group, len(group)) if new != word.lower()]
    return [re.sub(rf"\b{word}\b", new.capitalize() if word[0].isupper() else new, answer) for new in choices]


def in_digits(text: str) -> str:
    """Return the text with its numbers in digits: `5` for `five`, `fifth` and `5th`, `1000` for `1,000`.

    Word by word, so `second` is 2 wherever it stands; `one` is mostly no number and stays.
    """
    return _ANY_NUMBER.sub(lambda match: str(_value(match[0].casefold())), text)


def _value(number: str) -> int:
    """The value of one match of `_ANY_NUMBER`."""
    if number[0].isdigit():
        return int(re.sub(r"\D", "", number))
    return sum(_VALUES[word] for word in re.split(r"[ -]", number))


def _other_dates(answer: str, months: list[str], days: list[re.Match[str]], rng: random.Random) -> list[str]:
    """Another day of the month; another month if there is no day."""
    if len(days) == 1 and 1 <= int(days[0][1].replace(",", "")) <= 31 and not days[0][3]:
        day, width = days[0], 2 if days[0][1][0] == "0" else 0
        choices = [number for number in rng.sample(range(1, 29), 28) if number != int(day[1])]
        return [f"{answer[: day.start(1)]}{number:0{width}d}{answer[day.end(1) :]}" for number in choices]
    if days or len(set(months)) != 1:
        return []
    forms = next(forms for forms in _MONTHS if months[0] in forms)
    return [re.sub(rf"\b{months[0]}\b", month, answer) for month in rng.sample(forms, 12) if month != months[0]]


def _other_values(answer: str, number: re.Match[str], rng: random.Random) -> list[str]:
    whole, decimals, ordinal = number[1].replace(",", ""), number[2] or "", number[3] or ""
    if int(whole) == 1 and not ordinal:
        return []  # its unit is in the singular
    zeros = len(whole) - len(whole.rstrip("0")) if int(whole) else 0
    step = 10**zeros
    value, least = int(whole) // step, 10 ** (len(whole) - zeros - 1)
    least, most = max(2, least, value // 2), min(10 * least - 1, max(9, 2 * value))
    if "%" in answer or "percent" in answer or "per cent" in answer:
        most = min(most, 99 // step)
    if most < least:
        return []  # more than 100 %
    values = [candidate for candidate in range(least, most + 1) if candidate != value] if most - least < 1000 else []
    values = values or [rng.randint(least, most) for _ in range(_TRIES)]
    texts = []
    for candidate in rng.sample(values, min(_TRIES, len(values))):
        text = f"{candidate * step:,}" if "," in number[1] else str(candidate * step)
        if decimals:
            text += "." + "".join(rng.choice("123456789") for _ in decimals[1:])
        end = number.start(1) + len(number[1]) + len(decimals) + len(ordinal)
        texts.append(answer[: number.start(1)] + text + (_ordinal(candidate * step) if ordinal else "") + answer[end:])
    return texts


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

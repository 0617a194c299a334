"""Other numbers, years and dates in the place of the only number of an answer.

Everything else of the answer stays: its unit, its month and year, how many digits and zeros the number has. So the
other answer fits wherever the answer stood.
"""

from __future__ import annotations

import calendar
import random
import re

from data_builders.swap.kinds import YEAR

_NUMBER = re.compile(r"(?<![\w.,-])[$€£¥]?(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(st|nd|rd|th)?(?![\w-]|[.,/:]\d)")
_MONTHS = (list(calendar.month_name)[1:], list(calendar.month_abbr)[1:])
_DAYS = list(calendar.day_name)
# Number words that can replace each other.
_WORDS = (
    ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
    ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
)
_YEARS_AWAY = 10
_TRIES = 12


def other_numbers(answer: str, rng: random.Random) -> list[str]:
    """Return the answer with another number, year or date in random order; none if it has no single number."""
    months = [form for forms in _MONTHS for form in forms if re.search(rf"\b{form}\b", answer)]
    years = YEAR.findall(answer)
    numbers = [found for found in _NUMBER.finditer(answer) if not YEAR.fullmatch(found[1]) or months]
    if months:
        return _other_dates(answer, months, [one for one in numbers if not YEAR.fullmatch(one[1])], rng)
    words = [word for word in re.findall(r"[A-Za-z]+", answer) if any(word.lower() in one for one in _WORDS)]
    digits = re.findall(r"\d+", "".join(c for c in answer if c not in ",."))
    if len(numbers) + len(years) + len(words) != 1 or len(digits) + len(words) != 1:
        day = next((day for day in _DAYS if day == answer), None)
        return rng.sample([one for one in _DAYS if one != day], 6) if day else []
    if years:
        near = [int(years[0]) + step for step in range(-_YEARS_AWAY, _YEARS_AWAY + 1) if step]
        return [answer.replace(years[0], str(year)) for year in rng.sample(near, len(near))]
    if words:
        return _other_words(answer, words[0], rng)
    return _other_values(answer, numbers[0], rng)


def number_forms(word: str) -> set[str]:
    """Return how a number can be written: `5`, `5th`, `five`, `fifth`; an empty set for another word."""
    groups = ((2, _WORDS[0]), (1, _WORDS[2]))  # with the number of the first word
    values = [first + group.index(word.lower()) for first, group in groups if word.lower() in group]
    if found := re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", word):
        values = [int(found[1])]
    forms = {word for _ in values} | {form for value in values for form in (str(value), f"{value}{_ordinal(value)}")}
    return forms | {group[v - first] for v in values for first, group in groups if 0 <= v - first < len(group)}


def _other_dates(answer: str, months: list[str], days: list[re.Match[str]], rng: random.Random) -> list[str]:
    """Another day of the month; another month if there is no day."""
    if len(days) == 1 and 1 <= int(days[0][1].replace(",", "")) <= 31 and not days[0][3]:
        day, width = days[0], 2 if days[0][1][0] == "0" else 0
        others = [other for other in rng.sample(range(1, 29), 28) if other != int(day[1])]
        return [f"{answer[: day.start(1)]}{other:0{width}d}{answer[day.end(1) :]}" for other in others]
    if days or len(set(months)) != 1:
        return []
    forms = next(forms for forms in _MONTHS if months[0] in forms)
    return [re.sub(rf"\b{months[0]}\b", one, answer) for one in rng.sample(forms, 12) if one != months[0]]


def _other_words(answer: str, word: str, rng: random.Random) -> list[str]:
    group = next(group for group in _WORDS if word.lower() in group)
    others = [one for one in rng.sample(group, len(group)) if one != word.lower()]
    written = [one.capitalize() if word[0].isupper() else one for one in others]
    return [re.sub(rf"\b{word}\b", one, answer) for one in written]


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
    values = [one for one in range(least, most + 1) if one != value] if most - least < 1000 else []
    values = values or [rng.randint(least, most) for _ in range(_TRIES)]
    chosen = rng.sample(values, min(_TRIES, len(values)))
    found = []
    for one in chosen:
        text = f"{one * step:,}" if "," in number[1] else str(one * step)
        if decimals:
            text += "." + "".join(rng.choice("123456789") for _ in decimals[1:])
        end = number.start(1) + len(number[1]) + len(decimals) + len(ordinal)
        found.append(answer[: number.start(1)] + text + (_ordinal(one * step) if ordinal else "") + answer[end:])
    return found


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")

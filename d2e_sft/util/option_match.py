"""Find the options that a text names: by letter, by the option's own words, or by both.

Option texts may hold `;`, `(A)` or one another, so nothing is split at separators. If a letter's option text follows
the letter, it is consumed as a whole; shorter option texts are looked for only outside longer ones.

Options may differ in a sign, a punctuation mark or an article (`-5` and `5`). So a text is compared with them by the
strictest rule that fits any. First come texts as they are written, then any letter case and any Unicode form, then
normalised words and signs, and last normalised words. Scores compare the options themselves.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from d2e_sft.util.answers import answer_key, look_alikes, normalise, option_key, token_f1, visible_text

# "(B)" anywhere; "B." "B)" "B:" where an entry of a list can begin; "option B".
_LABEL = re.compile(
    r"(?<!\w)\(([A-Za-z])\)|(?:^|(?<=[;,\n]))[ \t*]*([A-Z])[.):](?=\s|$)|\b[Oo]ption\s+([A-Z])\b(?![.]\w)"
)
_NO_SIGN = r"(?!#|\+\+)"  # the languages C# and C++ are no letters
_ONLY_LETTERS = re.compile(rf"(?:[\W_]|\band\b)*[A-Z]{_NO_SIGN}(?:(?:[\W_]|\band\b)+[A-Z]{_NO_SIGN})*[\W_]*")
_FIRST_LETTER = re.compile(rf"[\W_]*[A-Za-z]{_NO_SIGN}\b")
# "B 5"; before a word, "A" is an article.
_BARE_LABEL = re.compile(r"[\s*]*(?:([B-Z])|(A)(?![\s*]*[^\W\d_]))[\s*]+(?=\S)")
_ONE_LETTER = re.compile(rf"[\W_]*[A-Za-z]{_NO_SIGN}[\W_]*")
# Around an option that is written in a text: no word, sign or number that would make it another option.
_SIGN = r"\w+\-−#%$€£<>="
_BEFORE, _AFTER = rf"(?<![{_SIGN}])(?<!\d[.,:/])", rf"(?![{_SIGN}]|[.,:/]\d)"
_ENTRY_END = r"(?=[\s*.]*(?:$|[;,\n]|\([A-Za-z]\)))"
_TOKENS = 0xF0000  # first of the characters for private use, which no text has


def find_options(text: str, options: Sequence[str], *, several: bool) -> tuple[str, ...]:
    """Return the options that `text` names, in its order; none if it is ambiguous.

    It is ambiguous if it fits several options, a letter is next to another option's text, or it names two options,
    unless `several` may be chosen. The options are in the order of their letters.
    """
    mentioned = mentions(text, options)
    if any(len(places) > 1 for places in mentioned) or (len(mentioned) > 1 and not several):
        return ()
    return tuple(options[place] for [place] in mentioned)


def score_options(named: Sequence[str], golds: Sequence[str], options: Sequence[str]) -> tuple[float, float]:
    """Return exact match and token F1, in [0, 1], of the named options and the correct ones.

    Exact match compares the named options in their order with the correct ones in the order of `options`. For F1,
    options that normalising makes equal are one token each, if some are correct and some are not.
    """
    gold = sorted(golds, key=lambda answer: options.index(answer) if answer in options else len(options))
    mixed = [group for group in look_alikes(options, normalise) if len({option in gold for option in group}) > 1]
    tokens = {option: chr(_TOKENS + options.index(option)) for group in mixed for option in group}
    counted, expected = (" ".join(tokens.get(text, text) for text in texts) for texts in (named, gold))
    return float([*named] == gold), token_f1(counted, [expected])


def option_called(text: str, options: Sequence[str]) -> str | None:
    """Return the option that is the whole text by the strictest rule that fits any; None if none or several are."""
    places = _whole(text, options)
    return options[places[0]] if len(places) == 1 else None


def starts_with_label(line: str) -> bool:
    """Return whether a line begins like an entry of a list of options, `(A) …` or `A. …`."""
    match = _LABEL.search(line)
    return match is not None and not line[: match.start()].strip("*- ")


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _index(letter: str) -> int:
    return ord(letter.upper()) - ord("A")


def mentions(text: str, options: Sequence[str]) -> list[list[int]]:
    """Return the options that the text may mean at each place where it names one."""
    whole = _whole(text, options)
    if len(whole) != 1 and (_ONLY_LETTERS.fullmatch(text) or _ONE_LETTER.fullmatch(text)):  # `B`, `A, C`, `A and C`
        indices = map(_index, re.findall(r"\b[A-Za-z]\b", text))
        if chosen := list(dict.fromkeys(index for index in indices if index < len(options))):
            return [[index] for index in chosen]
    return [whole] if whole else _bare(text, options) or _labelled(text, options) or _contained(text, options)


def _plain(text: str) -> str:
    return text.strip().removesuffix(".").casefold()


# From the strictest: the first by which any option is the text decides.
_BY_WORDS = (answer_key, option_key)
_RULES = (str.strip, lambda text: text.strip().casefold(), _plain, lambda text: _plain(visible_text(text)), *_BY_WORDS)
_WRITTEN = ("{option}", "({letter}) {option}", "{letter} {option}")


def _whole(text: str, options: Sequence[str], *, labels: bool = True) -> list[int]:
    """Return the options that are the whole text, with or without letter, by the strictest rule that fits any."""
    for rule in _RULES:
        # Normalising would remove the letter of "(A) …" as an article; the labelled form is read elsewhere.
        if labels and rule in _BY_WORDS and (starts_with_label(text) or _bare(text, options)):
            break
        key = rule(text)
        for form in _WRITTEN if _FIRST_LETTER.match(text) else _WRITTEN[:1]:
            written = (form.format(letter=_letter(place), option=option) for place, option in enumerate(options))
            if places := [place for place, option in enumerate(written) if rule(option) == key]:
                return places
    return []


def _bare(text: str, options: Sequence[str]) -> list[list[int]]:
    """Return both options if a text is a letter without brackets and another option (`B 5`); otherwise nothing."""
    label = _BARE_LABEL.match(text)
    if label is None or (index := _index(label[1] or label[2])) >= len(options):
        return []
    rest = _whole(text[label.end() :], options, labels=False)
    return [[index, *rest]] if rest and index not in rest else []


def _labelled(text: str, options: Sequence[str]) -> list[list[int]]:
    """Return the options whose letters are in the text; one and another if a letter and the words after disagree."""
    chosen: list[list[int]] = []
    position = 0
    while match := _LABEL.search(text, position):
        position = match.end()
        index = _index(match[1] or match[2] or match[3])
        if index >= len(options):
            continue
        own_text = _text_pattern(options[index]).match(text, position)
        for second, option in enumerate(options):
            entry = _entry_pattern(option).match(text, position)
            # Of `5` and `.5`, the longer one is meant by `(A) .5`.
            if (
                second != index
                and entry
                and (own_text is None or (entry.end(), own_text.start(1)) > (own_text.end(), entry.start(1)))
            ):
                return [[index, second]]
        if [index] not in chosen:
            chosen.append([index])
        position = own_text.end() if own_text else position
    return chosen


@lru_cache(maxsize=4096)
def _text_pattern(option: str) -> re.Pattern[str]:
    words = r"\s+".join(re.escape(word) for word in option.split())
    return re.compile(rf"[\s*_:.]*({words})(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def _entry_pattern(option: str) -> re.Pattern[str]:
    return re.compile(_text_pattern(option).pattern + _ENTRY_END, re.IGNORECASE)


def _contained(text: str, options: Sequence[str]) -> list[list[int]]:
    """Return the options whose normalised words are in the text, outside those of a longer option.

    Of options with equal words, those count that are in the text as they are written.
    """
    by_key: dict[str, list[int]] = {}
    for index, option in enumerate(options):
        if normalise(option):
            by_key.setdefault(option_key(option), []).append(index)
    places: dict[int, list[list[int]]] = {}  # place of the words → what is named there
    haystack = f" {option_key(text)} "
    for key in sorted(by_key, key=len, reverse=True):
        place = haystack.find(f" {key} ")
        if place >= 0:
            group = by_key[key]
            places[place] = [group] if len(group) == 1 else _written(text, {i: options[i] for i in group}) or [group]
            # The length stays the same, so that places stay comparable.
            haystack = haystack.replace(f" {key} ", f" {'|' * len(key)} ")
    return [entry for place in sorted(places) for entry in places[place]]


def _written(text: str, options: Mapping[int, str]) -> list[list[int]]:
    """Return the options that are written in the text, in its order, by the strictest rule that finds any."""
    for rule in (str, str.casefold, lambda text: visible_text(text).casefold()):
        rest, places = rule(text), list[tuple[int, int]]()
        for index in sorted(options, key=lambda index: len(options[index]), reverse=True):
            written = re.compile(_BEFORE + re.escape(rule(options[index].strip())) + _AFTER)
            if match := written.search(rest):
                places.append((match.start(), index))
                rest = written.sub(lambda match: "|" * len(match.group()), rest)
        if places:
            return [[index] for _, index in sorted(places)]
    return []

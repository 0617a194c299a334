"""English words: lists (`word_lists.yaml`), forms of verbs by rule, stems, and which word is the verb of a clause."""

from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from d2e_sft.util.answers import words
from d2e_sft.util.files import load_package_yaml


@cache
def words_of(*names: str) -> frozenset[str]:
    """Return the words of one or more lists, of those that are made by rule too (`s_forms`, `verb_forms`, …)."""
    return frozenset[str]().union(*(_LISTS[name] for name in names))


def _words(name: str) -> frozenset[str]:
    entries = _TEXTS[name].split()
    included = [_words(entry[1:]) for entry in entries if entry.startswith("+")]
    return frozenset(entry for entry in entries if not entry.startswith("+")).union(*included)


def _s_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ies"
    return f"{base}es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else f"{base}s"


def _past_form(base: str) -> str:
    if base.endswith("y") and base[-2] not in "aeiou":
        return f"{base[:-1]}ied"
    if base in _LISTS["doubling"]:
        return f"{base}{base[-1]}ed"
    return f"{base}d" if base.endswith("e") else f"{base}ed"


_TEXTS = load_package_yaml(Path(__file__).with_name("word_lists.yaml"))
_LISTS = {name: _words(name) for name in _TEXTS}
# Business prose has `base_forms`, `s_forms` and `past_forms`; a text of any kind also the lists below.
_LISTS["s_forms"] = frozenset(map(_s_form, _LISTS["base_forms"] - {"be", "have", "do"}))
_LISTS["past_forms"] = frozenset(map(_past_form, _LISTS["base_forms"]))
_IRREGULAR = [forms.split() for forms in _TEXTS["irregular_verbs"].split(",")]  # first form, past, participle
_LISTS["plain_forms"] = _LISTS["base_forms"] | _LISTS["everyday"] | {forms[0] for forms in _IRREGULAR}
_LISTS["third_forms"] = frozenset(map(_s_form, _LISTS["plain_forms"] - {"be", "have", "do"}))
_LISTS["irregular_forms"] = _LISTS["irregular_pasts"] | {forms[1] for forms in _IRREGULAR}
_LISTS["verb_forms"] = words_of("plain_forms", "third_forms", "irregular_forms", "past_forms")

_FIRST_FORMS = {form: forms[0] for forms in _IRREGULAR for form in forms[1:]}
STOP_WORDS = words_of("stop_words", "question_stems")


def stems(text: str) -> set[str]:
    return {stem(word) for word in words(text) if word not in STOP_WORDS} - STOP_WORDS


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """Return a lower-case word without its commonest English endings: `stopped` gives `stop`, `won` `win`."""
    word = _FIRST_FORMS.get(word, word)
    for ending in ("ing", "ed", "es", "s", "ly"):
        rest = word.removesuffix(ending)
        if rest != word and len(rest) >= 3 and not (ending == "s" and rest.endswith(("s", "u", "i"))):
            word = rest
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    if len(word) > 2 and word.endswith("y"):
        word = word[:-1] + "i"
    bare = word.rstrip("e")
    return bare if len(bare) > 1 else word


# Two views of verbs. `finite_verb` is cautious and for business prose: a question must not be worded around a noun.
# `predicate_place` is for text of any kind, in which a clause may be left out.

_NEVER_NOUNS = frozenset(["remains", "becomes", "seems", "appears", "continues", "exists"])
_CONTRACTIONS = frozenset(["am", "'s", "'re", "'ve", "'ll", "'m", "'d"])
_AFTER_VERBS = words_of("determiners", "noun_cues", "by_reference", "after_verbs") - {"by"} | {""}


def finite_verb(words: list[str]) -> Literal["sure", "likely", "unclear"] | None:
    """Return how sure it is that the main clause has a finite verb after its first word; None if it has none."""
    relative = False
    for i, word in enumerate(words[1:], start=1):
        if word in words_of("subordinators"):
            # Each clause that begins here has a verb of its own; "as" and "than" mostly begin none.
            clauses = sum(later in words_of("subordinators") - {"as", "than"} for later in words[i:])
            verbs = i + 1 < len(words) and words[i + 1] in words_of("base_forms", "past_forms")
            certain = words_of("auxiliaries", "modals", "s_forms", "irregular_pasts")
            return "unclear" if verbs + sum(later in certain for later in words[i:]) > clauses else None
        if words[i - 1] in words_of("nominatives") and i > 1 and words[i - 2] not in (",", "and", "but"):
            relative = True
            continue  # "the insights it is able to share"
        has_object = i + 1 < len(words) and words[i + 1] in words_of("determiners")
        if relative and words[i - 1].endswith("ed") and word in words_of("base_forms", "s_forms") and has_object:
            return "unclear"  # "the trends we have outlined | limit our view"
        if _surely_finite(words, i):
            return "sure"
        if _likely_finite(words, i):
            return "likely"
    return None


def _surely_finite(words: list[str], i: int) -> bool:
    """Whether a word can only be the verb of the words before it."""
    word, previous = words[i], words[i - 1]
    if (word in words_of("auxiliaries") and previous != "to") or word in words_of("modals") or word.endswith("n't"):
        return True
    if previous in ("we", "they", "you", "i"):
        return word in words_of("base_forms", "past_forms")
    # "some partners also experience growth"
    return previous in words_of("adverbs") and i > 1 and word in words_of("base_forms", "s_forms")


def _likely_finite(words: list[str], i: int) -> bool:
    """Whether a word reads as the verb of the words before it: "sales fell", "a firm sells"; not "the sales"."""
    word, previous, following = words[i], words[i - 1], words[i + 1] if i + 1 < len(words) else ""
    if previous in words_of("determiners", "noun_cues") or previous in ("to", ",", "and", "or", "-"):
        return False
    plural = _is_plural(previous)
    third = word in words_of("s_forms") and not plural and (not previous.endswith("ing") or word in _NEVER_NOUNS)
    may_end = i <= 5 and words[0] not in words_of("base_forms")  # "a rival enters", not "carry greater risks"
    agrees = (third and (bool(following) or may_end)) or (word in words_of("base_forms") and plural)
    past = word in words_of("past_forms") and following not in ("by", "in", "to", "with")  # else a participle
    unknown_past = word.endswith("ed") and len(word) > 4 and following in words_of("determiners") | {"and"}
    return agrees or word in words_of("irregular_pasts") or past or unknown_past


def _is_plural(noun: str) -> bool:
    return noun.endswith("s") and not noun.endswith(("'s", "ss")) and noun not in words_of("not_plural")


def predicate_place(words: list[str]) -> int | None:
    """Return the place of the finite verb of a clause that begins with these words; None if it has none.

    A verb behind a relative pronoun or a conjunction belongs to another clause.
    """
    opening = words_of("clause_openers")
    for place in range(1 if words[:1] and words[0] in opening else 0, len(words)):
        if place and (words[place] in opening or (words[place] == "that" and place > 1)):
            return None
        if place and _is_finite(words, place):
            return place
    return None


def _is_finite(words: list[str], i: int) -> bool:
    """Whether a word can be the finite verb of the words before it."""
    word, previous, following = words[i], words[i - 1], words[i + 1] if i + 1 < len(words) else ""
    if previous == "to" or previous in words_of("determiners"):
        return False
    if word in words_of("auxiliaries", "modals") or word in _CONTRACTIONS:
        return True
    before = words[i - 2] if previous.endswith("ly") or previous in words_of("adverbs") else previous
    if before in words_of("nominatives") or before == "i":
        return word in words_of("verb_forms") or word.endswith("ed")
    if previous in words_of("noun_cues", "prepositions") or word == "like":
        return False
    if word.endswith("ed") and len(word) > 4 and word not in words_of("irregular_forms"):
        return (following not in ("by", "with", "from") and i > 1) or (before[:1].isalpha() and i <= 2)
    return word in words_of("irregular_forms", "plain_forms" if _is_plural(before) else "third_forms")


def begins_with_verb(words: list[str], *, finite: bool = False) -> bool:
    """Whether words begin with a verb, perhaps behind an adverb; with `finite`, its base form does not count."""
    known = words_of("auxiliaries", "modals", "third_forms", "irregular_forms") - {"left", "like"}
    for word, following in pairwise([*words[:3], ""]):
        has_object = following in _AFTER_VERBS or following.endswith("ing")
        base = word in words_of("plain_forms") and word != "like" and (has_object or not finite)
        if word in known or base or (word.endswith("ed") and following in _AFTER_VERBS):
            return True
        if not word.endswith("ly") and word not in words_of("adverbs"):
            return False
    return False

"""Verbs in a phrase: whether it has a finite one, and whether a word can start a predicate."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from data_builders.text.word_lists import words_of

# After a gerund other forms are nouns: "switching costs", but "the risk to funding remains".
_BEHIND_PASTS = words_of("determiners", "noun_cues", "by_reference") - {"by"} | {
    "to",
    "out",
    "up",
    "at",
    "as",
    "",
    "him",
    "me",
}
_NEVER_NOUNS = frozenset(["remains", "becomes", "seems", "appears", "continues", "exists"])


def predicate_kind(first: str) -> Literal["finite", "bare"] | None:
    """Return the kind of a predicate that starts with this word; None if no predicate does."""
    if first in words_of("auxiliaries", "s_forms", "irregular_pasts", "past_forms"):
        return "finite"
    return "bare" if first in words_of("base_forms") else None


def starts_predicate(word: str) -> bool:
    """Whether the words after a span can be its predicate, so that the span is a subject."""
    return word in words_of("auxiliaries", "modals", "s_forms", "base_forms", "past_forms", "irregular_pasts")


def finite_verb(words: list[str]) -> Literal["sure", "likely", "unclear"] | None:
    """Return how sure it is that the main clause has a finite verb after its first word; None if it has none."""
    relative = False
    for at, word in enumerate(words[1:], start=1):
        if word in words_of("subordinators"):
            # Each clause that begins here has a verb of its own; "as" and "than" mostly begin none.
            own = sum(later in words_of("subordinators") - {"as", "than"} for later in words[at:])
            verbs = at + 1 < len(words) and words[at + 1] in words_of("base_forms", "past_forms")
            certain = words_of("auxiliaries", "modals", "s_forms", "irregular_pasts")
            return "unclear" if verbs + sum(later in certain for later in words[at:]) > own else None
        if words[at - 1] in words_of("nominatives") and at > 1 and words[at - 2] not in (",", "and", "but"):
            relative = True
            continue  # "the insights it is able to share"
        has_object = at + 1 < len(words) and words[at + 1] in words_of("determiners")
        if relative and words[at - 1].endswith("ed") and word in words_of("base_forms", "s_forms") and has_object:
            return "unclear"  # "the trends we have outlined | limit our view"
        if _surely_finite(words, at):
            return "sure"
        if _likely_finite(words, at):
            return "likely"
    return None


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


def begins_with_verb(words: list[str], *, finite: bool = False) -> bool:
    """Whether words begin with a verb, perhaps behind an adverb; with `finite`, its base form does not count."""
    known = words_of("auxiliaries", "modals", "third_forms", "irregular_forms") - {"left", "like"}
    for word, following in pairwise([*words[:3], ""]):
        objects = following in _BEHIND_PASTS or following.endswith("ing")
        base = word in words_of("plain_forms") and word != "like" and (objects or not finite)
        if word in known or base or (word.endswith("ed") and following in _BEHIND_PASTS):
            return True
        if not word.endswith("ly") and word not in words_of("adverbs"):
            return False
    return False


def _is_finite(words: list[str], at: int) -> bool:
    """Whether a word can be the finite verb of the words before it."""
    word, previous = words[at], words[at - 1]
    following = words[at + 1] if at + 1 < len(words) else ""
    if previous == "to" or previous in words_of("determiners"):
        return False
    if word in words_of("auxiliaries", "modals") or word in ("am", "'s", "'re", "'ve", "'ll", "'m", "'d"):
        return True
    before = words[at - 2] if previous.endswith("ly") or previous in words_of("adverbs") else previous
    if before in words_of("nominatives") or before == "i":
        return word in words_of("verb_forms") or word.endswith("ed")
    if previous in words_of("noun_cues", "prepositions") or word == "like":
        return False
    if word.endswith("ed") and len(word) > 4 and word not in words_of("irregular_forms"):
        return (following not in ("by", "with", "from") and at > 1) or (before[:1].isalpha() and at <= 2)
    plural = before.endswith("s") and not before.endswith(("'s", "ss")) and before not in words_of("not_plural")
    present = "plain_forms" if plural else "third_forms"
    return word in words_of("irregular_forms", present)


def is_complement(words: list[str]) -> bool:
    """Whether the span reads "prices to rise"."""
    if "to" not in words[1:-1] or words[0] in words_of("by_reference") - {"its", "their", "his", "her"}:
        return False
    at = words.index("to", 1)
    return words[at + 1] in words_of("base_forms") and finite_verb(words[:at]) is None


def _surely_finite(words: list[str], at: int) -> bool:
    """Whether a word can only be the verb of the words before it."""
    word, previous = words[at], words[at - 1]
    if (word in words_of("auxiliaries") and previous != "to") or word in words_of("modals") or word.endswith("n't"):
        return True
    if previous in ("we", "they", "you", "i"):
        return word in words_of("base_forms", "past_forms")
    # "some partners also experience growth"
    return previous in words_of("adverbs") and at > 1 and word in words_of("base_forms", "s_forms")


def _likely_finite(words: list[str], at: int) -> bool:
    """Whether a word reads as the verb of the words before it: "sales fell", "a firm sells"; not "the sales"."""
    word, previous, following = words[at], words[at - 1], words[at + 1] if at + 1 < len(words) else ""
    if previous in words_of("determiners", "noun_cues") or previous in ("to", ",", "and", "or", "-"):
        return False
    plural = previous.endswith("s") and not previous.endswith(("'s", "ss")) and previous not in words_of("not_plural")
    third = word in words_of("s_forms") and not plural and (not previous.endswith("ing") or word in _NEVER_NOUNS)
    may_end = at <= 5 and words[0] not in words_of("base_forms")  # "a rival enters", not "carry greater risks"
    agrees = (third and (following or may_end)) or (word in words_of("base_forms") and plural)
    past = word in words_of("past_forms") and following not in ("by", "in", "to", "with")  # else a participle
    unknown_past = word.endswith("ed") and len(word) > 4 and following in words_of("determiners") | {"and"}
    return bool(agrees) or word in words_of("irregular_pasts") or past or unknown_past

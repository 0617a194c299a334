"""The kind of a phrase, from its words and the words around it."""

from __future__ import annotations

import itertools
import re
from typing import Literal

from data_builders.text.verbs import finite_verb, is_complement, starts_predicate
from data_builders.text.word_lists import words_of

# clause: "prices rose"; noun: "a rise of prices"; gerund: "raising prices"; infinitive: "to raise prices"; bare:
# "raise prices"; finite: "raises prices", "raised prices"; complement: "prices to rise", after "expect" or "allow".
Kind = Literal["clause", "noun", "gerund", "infinitive", "bare", "finite", "complement"]


# "on-site work, and cheaper goods, | the firm's margins": the end of a list that belongs to the words before it.
_LIST_FIRST = re.compile(r"^[^,]+, (and|or) [^,]+, (the|its|their|our|we|it|they)\b")
# "a holistic | offering": an adjective by its ending, whose noun is outside.
_ADJECTIVE = re.compile(r"\w{3}(istic|ous|ful|less|ible|able)$")


def kind_of(words: list[str], before: list[str], after: list[str], initial: bool) -> Kind | None:
    """Return the kind of a span, or None if it is not sure.

    Args:
        words, before, after: The words of the span and those around it, in lower case.
        initial: Whether the span starts its sentence.
    """
    first, last = words[0], before[-1] if before and not initial else ""
    # "Should | the firm be sold"
    condition = last in words_of("modals") and (len(before) == 1 or before[-2] in ".!?;")
    # "driven by new brands" lacks its subject
    participle = words[1:2] == ["by"] and (first in words_of("past_forms") or first.endswith(("ed", "en")))
    if condition or participle or _lacks_noun(words, after):
        return None
    if first == "to":
        whole = len(words) > 1 and words[1] in words_of("base_forms") and finite_verb(words) != "sure"
        return "infinitive" if whole else None
    if kind := _verb_start(words, last):
        return kind
    if (last in words_of("allowing") or last == "for") and is_complement(words):
        return "complement"
    earlier = before[-2] if len(before) > 1 else ""
    wants_noun = last in words_of("noun_cues") or (last == "to" and earlier in words_of("noun_cues_with_to"))
    gerund = first.endswith("ing") and first not in words_of("not_gerunds")
    if gerund and not wants_noun and finite_verb(words) != "sure":
        return None
    if after[:1] == [","] and after[1:2] and after[1] in words_of("modals"):
        after = after[1:]  # "that | purchases, or choices |, may depend"
    return _clause_or_noun(words, last, after[0] if after else "", wants_noun)


def _lacks_noun(words: list[str], after: list[str]) -> bool:
    """Whether a span ends in an adjective whose noun follows: "a holistic | offering"."""
    following = after[0] if after else ""
    return bool(
        _ADJECTIVE.search(words[-1])
        and not words_of("auxiliaries") & set(words[-2:-1])  # "is reasonable | relative to …"
        and following.isalpha()
        and following not in words_of("prepositions", "subordinators", "continues_noun", "leading")
        and (following.endswith("ing") or not starts_predicate(following))
    )


def _clause_or_noun(words: list[str], last: str, following: str, wants_noun: bool) -> Kind | None:
    """The kind by the verbs of the span, if it agrees with the words around it."""
    finite, predicate_follows = finite_verb(words), starts_predicate(following)
    wants_clause = last in words_of("clause_cues") or (last in ("", ",") and not predicate_follows)
    if words[0] in words_of("auxiliaries", "modals") or (finite == "likely" and following in words_of("modals")):
        return None  # "that | computer purchases | may fall": the seeming verb is a noun
    starts = not last or last in words_of("before_clauses")
    if (finite == "sure" and not wants_noun and starts) or (finite == "likely" and wants_clause):
        return None if _LIST_FIRST.search(" ".join(words).replace(" ,", ",")) else "clause"
    # "create a gap" makes the gap, "provides | the firm with a base" does not make the firm.
    made = last in words_of("making") and not {"as", "to", "with"} & set(words)
    supplied = last in words_of("supplying") and "with" in words
    named = words[0] in words_of("determiners") and last not in words_of("clause_cues") and not supplied
    if (
        finite
        or following in words_of("continues_noun")
        or _is_small_clause(words)
        or (last in words_of("makes") and _has_predicate(words))
        or (last in words_of("helping") and words_of("base_forms") & set(words[1:]))  # "helped | the rail capitalize"
        or not (wants_noun or made or named or predicate_follows)
    ):
        return None
    return "noun"


def _is_small_clause(words: list[str]) -> bool:
    """Whether it is a subject and a predicate without a verb, as after "with": "costs negligible", "size the key"."""
    joined = words_of("prepositions", "auxiliaries", "base_forms", "s_forms", "past_forms", "subordinators")
    return words[-1] in words_of("predicatives") or any(
        word in ("the", "a", "an")
        and before not in joined
        and not before.endswith(("ing", "ed"))
        and before[-1].isalpha()
        for before, word in itertools.pairwise(words)
    )


def _has_predicate(words: list[str]) -> bool:
    """Whether an adjective describes the words before it: "makes | the class more viable", "| this hard to copy"."""
    joined = words_of("prepositions", "determiners") | {"even", "far", "much", "very", "more", "less"}
    return any(
        (word in ("more", "less") or (word in words_of("predicatives") and after in ("to", "for")))
        and before not in joined
        for before, word, after in zip(words, words[1:], [*words[2:], ""], strict=False)
    )


def _verb_start(words: list[str], last: str) -> Kind | None:
    """The kind of a span that starts with a verb; None if it does not, or may not."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first.endswith("ing") and len(first) > 4 and first not in words_of("not_gerunds"):
        has_object = second in words_of("determiners", "gerund_objects")
        participle = has_object or last in words_of("before_participles")
        return "gerund" if participle and finite_verb(words) is None else None
    if last in words_of("modals") and first in words_of("base_forms"):
        return "bare"
    starts = first in words_of("auxiliaries", "s_forms", "past_forms", "irregular_pasts")
    return "finite" if starts and last in ("which", "that", "this") else None

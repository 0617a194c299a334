"""Which kind of phrase a marked span of English is, so that a question can be worded around it; None if unsure.

Annotators mark spans freely: a clause ("prices rose"), a noun phrase, a verb phrase without its subject, or a piece of
these. The words around a span say which phrase must be there ("because" a clause, "because of" a noun phrase). Its
auxiliaries and verb forms say which one is there. A span gets a kind only if both agree.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from data_builders.text.words import finite_verb, words_of

# clause: "prices rose"; noun: "a rise of prices"; gerund: "raising prices"; infinitive: "to raise prices"; bare:
# "raise prices"; finite: "raises prices", "raised prices"; complement: "prices to rise", after "expect" or "allow".
Kind = Literal["clause", "noun", "gerund", "infinitive", "bare", "finite", "complement"]

_FINITE = words_of("auxiliaries", "s_forms", "irregular_pasts", "past_forms")
_PREDICATES = words_of("modals", "base_forms") | _FINITE  # what the words behind a subject begin with
_TOKEN = re.compile(r"[A-Za-z0-9$%&][\w$%&.'’/-]*[\w%]|[A-Za-z0-9$%&]|[^\s\w]")
_EDGE = " \t\n,.;:-"
# A span that matches one of these is cut or is not one phrase.
_REFUSED = re.compile(
    r"\bwe (?:forecast|project|anticipate) to\b"  # "as | we forecast to grow": the forecast is outside
    r"|^we \w+ (?:will|would|can|could|may|might|should)\b"  # "which | we expect will fall"
    r"|[.!?] +[A-Z]|[?!;]"  # two sentences
    r"|\b([a-z]{2,}) \1\b"  # a word that was typed twice
    r"|\b(?i:because|due to|thanks to|as a result|owing to|therefore|in order to|given)\b"  # a cause of its own
)
_MOST_WORDS = 40
# "on-site work, and cheaper goods, | the firm's margins": the end of a list that belongs to the words before it.
_LIST_FIRST = re.compile(r"^[^,]+, (and|or) [^,]+, (the|its|their|our|we|it|they)\b")
# "a holistic | offering": an adjective by its ending, whose noun is outside.
_ADJECTIVE = re.compile(r"\w{3}(istic|ous|ful|less|ible|able)$")


@dataclass(frozen=True)
class Phrase:
    """A span as a whole phrase.

    Attributes:
        text: As in the passage, without punctuation and conjunctions around it, with an article or "to" before it.
        inner: The text as it reads inside a sentence: the capital of a sentence's start is lowered.
        before: The two words before it, in lower case; empty at the start of a sentence.
        is_subject: Whether the words after it can be its predicate.
        hypothetical: Whether it is the condition of an "if", so it is not stated as true.
        contrasted: Whether a "but" separates it from the words before.
    """

    text: str
    kind: Kind
    inner: str
    start: int
    end: int
    before: tuple[str, str] = ("", "")
    is_subject: bool = False
    hypothetical: bool = False
    contrasted: bool = False

    @property
    def stands_alone(self) -> bool:
        """Whether it can be understood without the words before it: its subject is not an "it"."""
        return self.text.split()[0].casefold() not in words_of("by_reference") - {"there"}

    @property
    def says_what(self) -> bool:
        """Whether it is informative on its own: not "this is problematic"."""
        first, second, *_ = [*self.text.casefold().split(), ""]
        refers = first in ("this", "that", "these") and second in words_of("auxiliaries", "modals")
        return self.kind != "clause" or not refers


class Cases:
    """Counts how a corpus writes its words, to tell a name from a word that starts a sentence."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._lower: Counter[str] = Counter()
        self._upper: Counter[str] = Counter()
        for text in texts:
            for word in re.finditer(r"(?<=[^\s.!?:;\"'] )[A-Za-z][a-z]+", text):
                (self._lower if word.group()[0].islower() else self._upper)[word.group().casefold()] += 1

    def inside(self, text: str) -> str:
        """Return the text of a sentence's start as it reads inside a sentence."""
        first = re.match(r"[A-Z][a-z]*\b(?![&.])", text)
        if not first or first.group() == "I":
            return text
        word, named = first.group().casefold(), text[first.end() : first.end() + 2].strip().istitle()
        usual = self._lower[word] > self._upper[word] and not named  # "New Jersey" is a name, "new" alone is not
        common = word in words_of("determiners", "by_reference", "subordinators", "always_lower") or usual
        return text[0].lower() + text[1:] if common else text


def phrase_at(passage: str, start: int, end: int, cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """Return the phrase of a span, or None if it is cut, too long or of no sure kind.

    `cases` tells how the corpus writes its words. `subject_end` ends a noun phrase whose predicate the span may be.
    """
    start, end = _trim(passage, start, min(end, len(passage)))
    if start >= end or _is_cut(passage, start, end):
        return None
    start = _with_article_or_to(passage, start)
    text, before, after = passage[start:end], _words(passage[:start]), _words(passage[end:])
    words = _words(text)
    cut = words[-1] in words_of("dangling") or words[0] in words_of("bad_start") or _REFUSED.search(text)
    if len(text.split()) > _MOST_WORDS or cut:
        return None
    if before and before[-1].endswith(("'s", "s'")):
        return None  # "Kroger's | asset-light model"
    initial = not before or before[-1] in ".!?" or passage[:start].rstrip()[-1:] in ".!?"
    last = "" if initial else before[-1]
    earlier = before[-2] if not initial and len(before) > 1 else ""
    contrasted = last == "but"
    if last in ("and", "but") and earlier == ",":
        before, last = before[:-1], ","  # a clause that follows another one
    if subject_end is not None and 0 <= start - subject_end <= 1 and words[0] in words_of("base_forms") | _FINITE:
        return Phrase(text, "finite" if words[0] in _FINITE else "bare", text, start, end)
    # The words after it belong to it: "the probability | that a user buys", but not "a tool | that helps".
    runs_on = after[:1] == ["of"] or (after[:1] == ["that"] and "".join(after[1:2]) not in _PREDICATES)
    kind = None if runs_on else _kind(words, before, after, initial)
    if kind is None:
        return None
    inner = cases.inside(text) if initial else text
    subject, condition = bool(after) and after[0] in _PREDICATES, last in ("if", "unless", "whether")
    return Phrase(text, kind, inner, start, end, (earlier, last), subject, condition, contrasted)


def _words(text: str) -> list[str]:
    return [word.casefold().replace("’", "'") for word in _TOKEN.findall(text)]


def _trim(passage: str, start: int, end: int) -> tuple[int, int]:
    """The span without punctuation around it and without the conjunction that joins it to the words before."""
    while True:
        while start < end and passage[start] in _EDGE:
            start += 1
        word = re.match(r"([A-Za-z]+)(,?)(?=\s)", passage[start:end])
        if not word or word[1].casefold() not in words_of("connectives" if word[2] else "leading"):
            break
        start += word.end()
    while end > start and passage[end - 1] in _EDGE:
        end -= 1
    return start, end


def _is_cut(passage: str, start: int, end: int) -> bool:
    """Whether the span is a piece of a word, of a bracket or of a quotation, or ends in the next word's adverb."""
    text, before, after = passage[start:end], passage[start - 1 : start] if start else "", passage[end : end + 1]
    if before in ("-", "'", "$") or (before.isalnum() and text[0].isalnum()):
        return True
    if text[-1].isalnum() and after and (after.isalnum() or after in "-'’%&"):
        return True
    if text.count("(") != text.count(")") or text.count('"') % 2:
        return True
    # "the fee increasingly | weighs on"
    return bool(re.search(r"\w{3}ly$", text)) and passage[end : end + 2].strip(" ").isalpha()


def _with_article_or_to(passage: str, start: int) -> int:
    """The start of the span together with the article before it, or with the "to" of its infinitive."""
    match = re.search(r"(\w+) +$", passage[:start])
    if match is None:
        return start
    word, following = match.group(1).casefold(), _words(passage[start : start + 40])
    if word == "to" and following[:1] and following[0] in words_of("base_forms"):
        earlier = _words(passage[: match.start()])
        if earlier[-1:] and earlier[-1] in words_of("noun_cues_with_to") and following[0] not in ("be", "have"):
            return start  # "due to demand"
        return match.start()
    return match.start() if word in words_of("determiners") else start


def _kind(words: list[str], before: list[str], after: list[str], initial: bool) -> Kind | None:
    """The kind of a span, from its words and those around it; None if it is not sure."""
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
    if (last in words_of("allowing") or last == "for") and _is_complement(words):
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
        and (following.endswith("ing") or following not in _PREDICATES)
    )


def _clause_or_noun(words: list[str], last: str, following: str, wants_noun: bool) -> Kind | None:
    """The kind by the verbs of the span, if it agrees with the words around it."""
    finite, predicate_follows = finite_verb(words), following in _PREDICATES
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
        for before, word in pairwise(words)
    )


def _has_predicate(words: list[str]) -> bool:
    """Whether an adjective describes the words before it: "makes | the class more viable", "| this hard to copy"."""
    joined = words_of("prepositions", "determiners") | {"even", "far", "much", "very", "more", "less"}
    return any(
        (word in ("more", "less") or (word in words_of("predicatives") and after in ("to", "for")))
        and before not in joined
        for before, word, after in zip(words, words[1:], [*words[2:], ""], strict=False)
    )


def _is_complement(words: list[str]) -> bool:
    """Whether the span reads "prices to rise"."""
    if "to" not in words[1:-1] or words[0] in words_of("by_reference") - {"its", "their", "his", "her"}:
        return False
    i = words.index("to", 1)
    return words[i + 1] in words_of("base_forms") and finite_verb(words[:i]) is None


def _verb_start(words: list[str], last: str) -> Kind | None:
    """The kind of a span that starts with a verb; None if it does not, or may not."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first.endswith("ing") and len(first) > 4 and first not in words_of("not_gerunds"):
        has_object = second in words_of("determiners", "gerund_objects")
        participle = has_object or last in words_of("before_participles")
        return "gerund" if participle and finite_verb(words) is None else None
    if last in words_of("modals") and first in words_of("base_forms"):
        return "bare"
    return "finite" if first in _FINITE and last in ("which", "that", "this") else None

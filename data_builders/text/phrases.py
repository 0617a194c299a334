"""What kind of phrase a marked span of English is, so that a question can be worded around it; None where unsure.

Annotators mark spans as they like: a clause ("prices rose"), a noun phrase, a verb phrase without its subject, or a
piece of any of these. No parser is needed to tell most of them: the words before and after a span say what must
stand there ("because" a clause, "because of" a noun phrase), and auxiliaries and verb forms say what does stand
there. A span is given a kind only where both agree; the rest is refused rather than guessed.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from data_builders.text.word_lists import (
    ADVERBS,
    ALLOWING,
    ALWAYS_LOWER,
    AUXILIARIES,
    BAD_START,
    BASE_FORMS,
    BEFORE_CLAUSES,
    BY_REFERENCE,
    CLAUSE_CUES,
    CONNECTIVES,
    CONTINUES_NOUN,
    DANGLING,
    DETERMINERS,
    HELPING,
    IRREGULAR_PASTS,
    LEADING,
    MAKES,
    MAKING,
    MODALS,
    NOMINATIVES,
    NOT_GERUNDS,
    NOT_PLURAL,
    NOUN_CUES,
    NOUN_CUES_WITH_TO,
    PAST_FORMS,
    PREDICATIVES,
    PREPOSITIONS,
    S_FORMS,
    SUBORDINATORS,
    SUPPLYING,
)

# clause: "prices rose"; noun: "a rise of prices"; gerund: "raising prices"; infinitive: "to raise prices"; bare:
# "raise prices"; finite: "raises prices", "raised prices"; complement: "prices to rise", after "expect" or "allow".
Kind = Literal["clause", "noun", "gerund", "infinitive", "bare", "finite", "complement"]

_TOKEN = re.compile(r"[A-Za-z0-9$%&][\w$%&.'’/-]*[\w%]|[A-Za-z0-9$%&]|[^\s\w]")
_EDGE = " \t\n,.;:-"
# Where a span holds one of these, it holds a cause of its own, mostly the very one that was marked.
_CAUSAL = re.compile(r"\b(because|due to|thanks to|as a result|owing to|therefore|in order to|given)\b", re.IGNORECASE)
# "as | we forecast to grow", "which | we expect will fall": what is forecast or falls is outside.
_LACKS_OBJECT = re.compile(
    r"\bwe (forecast|project|anticipate) to\b|^we \w+ (will|would|can|could|may|might|should)\b"
)
_TWO_SENTENCES = re.compile(r"[.!?] +[A-Z]|[?!;]")
_DOUBLED_WORD = re.compile(r"\b([a-z]{2,}) \1\b")
# "on-site work, and cheaper goods, | the firm's margins": the end of a list that belongs to what is before it.
_LIST_FIRST = re.compile(r"^[^,]+, (and|or) [^,]+, (the|its|their|our|we|it|they)\b")
# "a holistic | offering": an adjective by its ending, whose noun is outside.
_ADJECTIVE = re.compile(r"\w{3}(istic|ous|ful|less|ible|able)$")
# After a gerund other forms are nouns: "switching costs", but "the risk to funding remains".
_NO_NOUNS = frozenset(["remains", "becomes", "seems", "appears", "continues", "exists"])
_HYPOTHETICAL = ("if", "unless", "whether")
# A word that may follow an adjective at the end of a phrase, so that no noun of its is missing.
_GOES_ON = PREPOSITIONS | SUBORDINATORS | CONTINUES_NOUN | LEADING
_MOST_WORDS = 40


@dataclass(frozen=True)
class Phrase:
    """A span as a whole phrase.

    Attributes:
        text: without punctuation and conjunctions around it, with the article or the "to" that the span left out; as
            it stands in the passage, so that it can be found there.
        kind: what it is.
        inner: the same as it reads inside a sentence: a capital of a sentence's start is lowered.
        start, end: its place in the passage, in characters.
        before: the two words before it, in lower case; empty at the start of a sentence.
        is_subject: whether what follows can be its predicate.
        hypothetical: whether it is the condition of an "if" and so not said to be true.
        contrasted: whether a "but" before it sets it against what comes before.
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
        """Whether a reader who has not read what is before it knows what it speaks of: no "it" for a subject."""
        return self.text.split()[0].casefold() not in BY_REFERENCE - {"there"}

    @property
    def says_what(self) -> bool:
        """Whether it tells something by itself: not "this is problematic"."""
        first, second, *_ = [*self.text.casefold().split(), ""]
        return self.kind != "clause" or first not in ("this", "that", "these") or second not in AUXILIARIES | MODALS


class Cases:
    """How the words of a corpus are written, to tell a name from a word that starts a sentence."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._lower: Counter[str] = Counter()
        self._upper: Counter[str] = Counter()
        for text in texts:
            for word in re.finditer(r"(?<=[^\s.!?:;\"'] )[A-Za-z][a-z]+", text):
                (self._lower if word.group()[0].islower() else self._upper)[word.group().casefold()] += 1

    def inside(self, text: str) -> str:
        """The text of a sentence's start as it reads inside one."""
        first = re.match(r"[A-Z][a-z]*\b(?![&.])", text)
        if not first or first.group() == "I":
            return text
        word, named = first.group().casefold(), text[first.end() : first.end() + 2].strip().istitle()
        usual = self._lower[word] > self._upper[word] and not named  # "New Jersey" is a name, whatever "new" is
        common = word in DETERMINERS | BY_REFERENCE | SUBORDINATORS | ALWAYS_LOWER or usual
        return text[0].lower() + text[1:] if common else text


def phrase_at(passage: str, start: int, end: int, cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """The phrase that a span of a passage marks, or None where it is cut, too long or of no kind that is sure.

    Args:
        start, end: of the span in the passage, in characters.
        cases: how the corpus writes its words.
        subject_end: where a noun phrase ends whose predicate the span may be.
    """
    start, end = _trimmed(passage, start, min(end, len(passage)))
    if start >= end or _is_cut(passage, start, end):
        return None
    start = _with_article_or_to(passage, start)
    text, before, after = passage[start:end], _words(passage[:start]), _words(passage[end:])
    words = _words(text)
    if len(text.split()) > _MOST_WORDS or words[-1] in DANGLING or words[0] in BAD_START or _CAUSAL.search(text):
        return None
    if before and before[-1].endswith(("'s", "s'")):
        return None  # "Kroger's | asset-light model"
    initial = not before or before[-1] in ".!?" or passage[:start].rstrip()[-1:] in ".!?"
    last = "" if initial else before[-1]
    earlier = before[-2] if not initial and len(before) > 1 else ""
    contrasted = last == "but"
    if last in ("and", "but") and earlier == ",":
        before, last = before[:-1], ","  # a clause that follows another one
    if subject_end is not None and 0 <= start - subject_end <= 1 and (predicate := _predicate(words[0])):
        return Phrase(text, predicate, text, start, end, ("", ""))
    kind = None if _runs_on(after) else _kind(words, before, after, initial)
    if kind is None:
        return None
    inner = cases.inside(text) if initial else text
    subject = _starts_predicate(after[0]) if after else False
    return Phrase(text, kind, inner, start, end, (earlier, last), subject, last in _HYPOTHETICAL, contrasted)


def _words(text: str) -> list[str]:
    return [word.casefold().replace("’", "'") for word in _TOKEN.findall(text)]


def _trimmed(passage: str, start: int, end: int) -> tuple[int, int]:
    """The span without punctuation around it and without the conjunction that joins it to the rest."""
    while True:
        while start < end and passage[start] in _EDGE:
            start += 1
        word = re.match(r"([A-Za-z]+)(,?)(?=\s)", passage[start:end])
        if not word or word[1].casefold() not in (CONNECTIVES if word[2] else LEADING):
            break
        start += word.end()
    while end > start and passage[end - 1] in _EDGE:
        end -= 1
    return start, end


def _is_cut(passage: str, start: int, end: int) -> bool:
    """Whether the span is a piece of a word, of a bracket or of two sentences, or was mistyped."""
    text, before, after = passage[start:end], passage[start - 1 : start] if start else "", passage[end : end + 1]
    if before in ("-", "'", "$") or (before.isalnum() and text[0].isalnum()):
        return True
    if text[-1].isalnum() and after and (after.isalnum() or after in "-'’%&"):
        return True
    if text.count("(") != text.count(")") or text.count('"') % 2:
        return True
    # "the fee increasingly | weighs on": the adverb belongs to what follows
    adverb_follows = re.search(r"\w{3}ly$", text) and passage[end : end + 2].strip(" ").isalpha()
    return bool(
        adverb_follows or _LACKS_OBJECT.search(text) or _DOUBLED_WORD.search(text) or _TWO_SENTENCES.search(text)
    )


def _runs_on(after: list[str]) -> bool:
    """Whether the words after a span belong to it: "the probability | that a user buys", not "a tool | that helps"."""
    following = after[1] if len(after) > 1 else ""
    return after[:1] == ["of"] or (after[:1] == ["that"] and not _starts_predicate(following))


def _with_article_or_to(passage: str, start: int) -> int:
    """Where the span starts with the article before it, or with the "to" of its infinitive."""
    found = re.search(r"(\w+) +$", passage[:start])
    if found is None:
        return start
    word, following = found.group(1).casefold(), _words(passage[start : start + 40])
    if word == "to" and following[:1] and following[0] in BASE_FORMS:
        earlier = _words(passage[: found.start()])
        if earlier[-1:] and earlier[-1] in NOUN_CUES_WITH_TO and following[0] not in ("be", "have"):
            return start  # "due to demand"
        return found.start()
    return found.start() if word in DETERMINERS else start


def _kind(words: list[str], before: list[str], after: list[str], initial: bool) -> Kind | None:
    first, last = words[0], before[-1] if before and not initial else ""
    condition = last in MODALS and (len(before) == 1 or before[-2] in ".!?;")  # "Should | the firm be sold, …"
    if condition or _lacks_its_subject(words) or _lacks_its_noun(words, after):
        return None
    if first == "to":
        whole = len(words) > 1 and words[1] in BASE_FORMS and _finite(words) != "sure"
        return "infinitive" if whole else None
    if kind := _verb_start(words, last):
        return kind
    if (last in ALLOWING or last == "for") and _complement(words):
        return "complement"
    earlier = before[-2] if len(before) > 1 else ""
    wants_noun = last in NOUN_CUES or (last == "to" and earlier in NOUN_CUES_WITH_TO)
    if first.endswith("ing") and first not in NOT_GERUNDS and not wants_noun and _finite(words) != "sure":
        return None
    if after[:1] == [","] and after[1:2] and after[1] in MODALS:
        after = after[1:]  # "that | purchases, or choices |, may depend"
    return _clause_or_noun(words, last, after[0] if after else "", wants_noun)


def _lacks_its_subject(words: list[str]) -> bool:
    """Whether a span is a participle with its doer: "driven by new brands"."""
    return words[1:2] == ["by"] and (words[0] in PAST_FORMS or words[0].endswith(("ed", "en")))


def _lacks_its_noun(words: list[str], after: list[str]) -> bool:
    """Whether a span ends in an adjective and its noun comes after it: "a holistic | offering"."""
    following = after[0] if after else ""
    return bool(
        _ADJECTIVE.search(words[-1])
        and not AUXILIARIES & set(words[-2:-1])  # "is reasonable | relative to …"
        and following.isalpha()
        and following not in _GOES_ON
        and (following.endswith("ing") or not _starts_predicate(following))
    )


def _clause_or_noun(words: list[str], last: str, following: str, wants_noun: bool) -> Kind | None:
    """Which of the two a span is by its verbs, if the words around it can stand beside one."""
    finite, predicate_follows = _finite(words), _starts_predicate(following)
    wants_clause = last in CLAUSE_CUES or (last in ("", ",") and not predicate_follows)
    if words[0] in AUXILIARIES or words[0] in MODALS or (finite == "likely" and following in MODALS):
        return None  # "that | computer purchases | may fall": what reads as a verb is a noun
    if (finite == "sure" and not wants_noun and (not last or last in BEFORE_CLAUSES)) or (
        finite == "likely" and wants_clause
    ):
        return None if _LIST_FIRST.search(" ".join(words).replace(" ,", ",")) else "clause"
    # "create a gap" makes it, "provides | the firm with a base" does not make the firm.
    made = last in MAKING and not {"as", "to", "with"} & set(words)
    named = words[0] in DETERMINERS and last not in CLAUSE_CUES and not (last in SUPPLYING and "with" in words)
    if (
        finite
        or following in CONTINUES_NOUN
        or _small_clause(words)
        or (last in MAKES and _with_predicate(words))
        or (last in HELPING and BASE_FORMS & set(words[1:]))  # "helped | the rail capitalize on trade"
        or not (wants_noun or made or named or predicate_follows)
    ):
        return None
    return "noun"


def _small_clause(words: list[str]) -> bool:
    """Whether a subject and its predicate stand side by side, as after "with": "costs negligible", "size the key"."""
    joined = PREPOSITIONS | AUXILIARIES | BASE_FORMS | S_FORMS | PAST_FORMS | SUBORDINATORS
    return words[-1] in PREDICATIVES or any(
        word in ("the", "a", "an")
        and before not in joined
        and not before.endswith(("ing", "ed"))
        and before[-1].isalpha()
        for before, word in itertools.pairwise(words)
    )


def _with_predicate(words: list[str]) -> bool:
    """Whether an adjective is said of what is before it: "makes | the class more viable", "| this hard to copy"."""
    joined = PREPOSITIONS | DETERMINERS | {"even", "far", "much", "very", "more", "less"}
    return any(
        (word in ("more", "less") or (word in PREDICATIVES and after in ("to", "for"))) and before not in joined
        for before, word, after in zip(words, words[1:], [*words[2:], ""], strict=False)
    )


def _verb_start(words: list[str], last: str) -> Kind | None:
    """The kind of a span that starts with a verb; None where it does not, or may not."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first.endswith("ing") and len(first) > 4 and first not in NOT_GERUNDS:
        object_follows = second in DETERMINERS or second in (
            "it",
            "to",
            "that",
            "more",
            "on",
            "in",
            "into",
            "up",
            "out",
        )
        participle = object_follows or last in (",", "by", "while", "thus", "thereby", "is", "was", "are")
        return "gerund" if participle and _finite(words) is None else None
    if last in MODALS and first in BASE_FORMS:
        return "bare"
    starts = first in AUXILIARIES or first in S_FORMS or first in PAST_FORMS or first in IRREGULAR_PASTS
    return "finite" if starts and last in ("which", "that", "this") else None


def _predicate(first: str) -> Kind | None:
    """The kind of a predicate that starts with this word; None where none does."""
    if first in AUXILIARIES or first in S_FORMS or first in IRREGULAR_PASTS or first in PAST_FORMS:
        return "finite"
    return "bare" if first in BASE_FORMS else None


def _finite(words: list[str]) -> Literal["sure", "likely", "unclear"] | None:
    """Whether the span's main clause has a finite verb after its first word."""
    relative = False
    for at, word in enumerate(words[1:], start=1):
        if word in SUBORDINATORS:
            # Each clause that begins here has a verb of its own; "as" and "than" mostly begin none.
            own = sum(later in SUBORDINATORS - {"as", "than"} for later in words[at:])
            return "unclear" if _verbs(words[at:]) > own else None
        if words[at - 1] in NOMINATIVES and at > 1 and words[at - 2] not in (",", "and", "but"):
            relative = True
            continue  # "the insights it is able to share"
        if relative and words[at - 1].endswith("ed") and word in BASE_FORMS | S_FORMS and _has_object(words, at):
            return "unclear"  # "the trends we have outlined | limit our view"
        if _surely_finite(words, at):
            return "sure"
        if _likely_finite(words, at):
            return "likely"
    return None


def _surely_finite(words: list[str], at: int) -> bool:
    """Whether a word can be nothing but the verb of what is before it."""
    word, previous = words[at], words[at - 1]
    if (word in AUXILIARIES and previous != "to") or word in MODALS or word.endswith("n't"):
        return True
    if previous in ("we", "they", "you", "i"):
        return word in BASE_FORMS or word in PAST_FORMS
    # "some partners also experience growth"
    return previous in ADVERBS and at > 1 and (word in BASE_FORMS or word in S_FORMS)


def _has_object(words: list[str], at: int) -> bool:
    return at + 1 < len(words) and words[at + 1] in DETERMINERS


def _likely_finite(words: list[str], at: int) -> bool:
    """Whether a word reads as the verb of what is before it: "sales fell", "a firm sells"; not "the sales"."""
    word, previous, following = words[at], words[at - 1], words[at + 1] if at + 1 < len(words) else ""
    if previous in DETERMINERS or previous in NOUN_CUES or previous in ("to", ",", "and", "or", "-"):
        return False
    plural = previous.endswith("s") and not previous.endswith(("'s", "ss")) and previous not in NOT_PLURAL
    third_person = word in S_FORMS and not plural and (not previous.endswith("ing") or word in _NO_NOUNS)
    may_end = at <= 5 and words[0] not in BASE_FORMS  # "a rival enters", not "carry greater risks"
    agrees = (third_person and (following or may_end)) or (word in BASE_FORMS and plural)
    participle = following in ("by", "in", "to", "with")
    unknown_past = word.endswith("ed") and len(word) > 4 and (following in DETERMINERS or following == "and")
    return bool(agrees) or word in IRREGULAR_PASTS or (word in PAST_FORMS and not participle) or unknown_past


def _verbs(words: list[str]) -> int:
    first = len(words) > 1 and (words[1] in BASE_FORMS or words[1] in PAST_FORMS)
    return first + sum(
        word in AUXILIARIES or word in MODALS or word in S_FORMS or word in IRREGULAR_PASTS for word in words
    )


def _complement(words: list[str]) -> bool:
    """Whether the span reads "prices to rise"."""
    if "to" not in words[1:-1] or words[0] in BY_REFERENCE - {"its", "their", "his", "her"}:
        return False
    at = words.index("to", 1)
    return words[at + 1] in BASE_FORMS and _finite(words[:at]) is None


def _starts_predicate(word: str) -> bool:
    """Whether what follows a span can be its predicate, so that the span is a subject."""
    return (
        word in AUXILIARIES
        or word in MODALS
        or word in S_FORMS
        or word in BASE_FORMS
        or word in PAST_FORMS
        or (word in IRREGULAR_PASTS)
    )

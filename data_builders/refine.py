"""The extractive refiner: keep the whole sentences of a context that have to do with the question.

The paper (section 3.2) lets a large language model write the refined context. This refiner needs no model, gives
the same result every time and cannot invent anything: the refined context is some of the context's own sentences,
in their order. A sentence's relevance is its share in the words of the query, where a word counts the more the
fewer of the context's sentences hold it.

The query is the question, and for scq, mcq and qa the answers too, since the refined view only ever meets the
answer it is trained with. For nli the answer is a label and says nothing about content.
"""

from __future__ import annotations

import math
import re
from collections import Counter

from pydantic import BaseModel, ConfigDict, Field

from d2e_sft.sample import EventSample


class RefinerOptions(BaseModel):
    """Options of the refiner; on the command line `refine.NAME=VALUE`.

    Attributes:
        threshold: a sentence is kept if its relevance is at least this share of the best sentence's.
        max_share: at most this share of the sentences is kept (rounded up), the most relevant ones.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threshold: float = Field(0.25, ge=0, le=1)
    max_share: float = Field(0.6, gt=0, le=1)


_WORD = re.compile(r"[^\W_]+")
_SENTENCE_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)""")
_ABBREVIATIONS_TEXT = """
mr mrs ms dr prof st jr sr gen col lt capt rev hon sen rep gov vs etc eg ie no inc co corp ltd u.s u.k u.n
e.g i.e a.m p.m jan feb mar apr jun jul aug sep sept oct nov dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())
_STOP_WORDS_TEXT = """
a about after again all also am an and any are as at be because been before being but by can could did do does
doing during each for from had has have having he her here hers him his how i if in into is it its just me more
most my no nor not now of off on once only or other our out over own s same she should so some such t than that
the their them then there these they this those through to too under until up very was we were what when where
which while who whom why will with would you your ll ve re d m
"""
# The words of the questions themselves, not of what they ask about; stems.
_QUESTION_WORDS_TEXT = "start end begin happen cause effect event context desire time subevent prerequisite"
_STOP_WORDS = frozenset(f"{_STOP_WORDS_TEXT} {_QUESTION_WORDS_TEXT}".split())


def refine(sample: EventSample, options: RefinerOptions) -> EventSample:
    """The sample with its refined context; a sample that has one already stays as it is."""
    if sample.refined_context is not None:
        return sample
    query = sample.question if sample.format == "nli" else " ".join([sample.question, *sample.answers])
    return sample.model_copy(update={"refined_context": refine_text(sample.context, query, options)})


def refine_text(context: str, query: str, options: RefinerOptions) -> str:
    """The sentences of `context` that are relevant to `query`, in their order.

    A context of one sentence is its own refined context, and so is one that shares no word with the query: there
    is then no ground for leaving anything out.
    """
    sentences = split_sentences(context)
    relevance = _relevance(sentences, query)
    if len(sentences) < 2 or not any(relevance):
        return context
    floor = options.threshold * max(relevance)
    most = math.ceil(options.max_share * len(sentences) - 1e-9)
    ranked = sorted(range(len(sentences)), key=lambda i: (-relevance[i], i))
    kept = sorted(i for i in ranked[:most] if relevance[i] > 0 and relevance[i] >= floor)
    return ("\n" if "\n" in context else " ").join(sentences[i] for i in kept)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, or, where it has several lines (a dialogue), its lines; each verbatim."""
    if "\n" in text:
        return [line for line in text.split("\n") if line.strip()]
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        if _ends_sentence(text, end):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, end: re.Match[str]) -> bool:
    words = text[: end.start()].split()
    last = words[-1].strip("\"'(“‘").casefold() if words else ""
    if end.group() == "." and (last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha() and last != "i")):
        return False
    following = text[end.end() :].lstrip()
    return not following[:1].islower()


def _relevance(sentences: list[str], query: str) -> list[float]:
    """For each sentence the summed weight of the query's words in it; a word's weight is log(1 + n / df)."""
    wanted = _stems(query)
    found = [_stems(sentence) & wanted for sentence in sentences]
    frequency = Counter(stem for stems in found for stem in stems)
    weight = {stem: math.log(1 + len(sentences) / count) for stem, count in frequency.items()}
    # Sorted, since sums of floats depend on their order and sets have none.
    return [sum(weight[stem] for stem in sorted(stems)) for stems in found]


def _stems(text: str) -> set[str]:
    stems = {stem(word) for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS}
    return {found for found in stems if found not in _STOP_WORDS}


def stem(word: str) -> str:
    """A lower-case word without its commonest English endings: `stopped` and `stops` give `stop`."""
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

"""Is a free answer faithful to its context? Measures by words, for answers of format qa and chat.

- **contained**: whether the answer contains an accepted one as whole words ("It is the Turing machine" does).
- **context recall**: share of the accepted answer's words in the context that the answer has too.
- **in context**: share of the answer's words that are in the context (K-Precision of Adlakha et al., 2024, "Evaluating
  Correctness and Faithfulness of Instruction-Following Models for Question Answering").
- **claim overlap**: the same for each sentence of the answer and one sentence of the context, the one that has most of
  its words; the mean over the answer's sentences. Words from many places make no supported claim.
- **refusal**: of rows whose context lacks the answer, whether the model says so. Where a benchmark has unanswerable
  rows, the others also say whether it refuses them (**false refusal**), and whether it is right (**answered**).

Words are those of SQuAD's normalisation, without function words, which every text has. Typographic marks part words,
too, and in a script without blanks each character is one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from sentencex import segment

from d2e_sft.util.answers import UNSPACED, contains, has_refusal, normalise, parted, without_apostrophes
from eval.score.predictions import Prediction

# Key in scores.json → name in tables.
BY_WORDS = {
    "contained": "contained",
    "context_recall": "context recall",
    "answer_in_context": "in context",
    "claim_overlap": "claim overlap",
}
REFUSALS = {"refusal": "refused", "false_refusal": "refused wrongly", "answered": "right where answerable"}
MEASURES = BY_WORDS | REFUSALS
_FUNCTION_WORDS = """
about after all also am and any are as at be been before by but can could did do does for from had has have he her his
how i if in into is it its may me must my no not of on or our out she should so some than that their them then there
these they this those to was we were what when where which who why will with would yes you your
"""
_IDLE = frozenset(_FUNCTION_WORDS.split())
_WHOLE = r"(?<!\w)(?<!\d[.,]){}(?!\w)(?![.,]\d)"  # no part of a word or a number


def answer_in_context(answer: str, context: str) -> float | None:
    """Return the share of the answer's words that are in the context; None for an answer without words."""
    return _share(_words(answer), frozenset(_words(context)))


def context_recall(answer: str, gold: Sequence[str], context: str) -> float | None:
    """Return the share of an accepted answer's words in the context that the answer has, for the nearest one.

    None if no accepted answer has words of the context.
    """
    answer_words, known = frozenset(_words(answer)), frozenset(_words(context))
    shares = (_share([word for word in _words(text) if word in known], answer_words) for text in gold)
    return max((share for share in shares if share is not None), default=None)


def claim_overlap(answer: str, context: str) -> float | None:
    """Return the mean over the answer's sentences of the share of words that one sentence of the context has.

    None for an answer without words.
    """
    places = [frozenset(words) for words in _sentences(context)]
    shares = [max(_share(claim, place) or 0.0 for place in places) for claim in _sentences(answer)] if places else []
    return sum(shares) / len(shares) if shares else None


def lacks_answer(prediction: Prediction) -> bool:
    """Return whether the context lacks the answer: the row is tagged so, or has no word of an accepted answer.

    Rows tagged as irrelevant expect an answer from elsewhere, and an answer without words cannot be looked for. Of a
    script without blanks, two characters in a row are a word.
    """
    if prediction.subset in ("unanswerable", "irrelevant"):
        return prediction.subset == "unanswerable"
    return not any(_has_words_of(gold, prediction.context) for gold in prediction.gold)


def _has_words_of(gold: str, context: str) -> bool:
    """Whether a context has an answer as it is written, or one of its words; so for an answer without words."""
    words = _words(gold)
    pairs = (run[at : at + 2] for run in re.findall(f"{UNSPACED}+", gold) for at in range(max(1, len(run) - 1)))
    return (
        not words
        or not set(_words(context)).isdisjoint(word for word in words if not re.fullmatch(UNSPACED, word))
        or any(pair in context for pair in pairs)
        or re.search(_WHOLE.format(re.escape(gold.strip())), context, re.IGNORECASE) is not None
    )


def refusals_of(predictions: Iterable[Prediction]) -> frozenset[str]:
    """Return the accepted answers of unanswerable rows, normalised."""
    return frozenset(without_apostrophes(gold) for p in predictions if p.subset == "unanswerable" for gold in p.gold)


def refuses(answer: str, refusals: Collection[str] = ()) -> bool:
    """Return whether an answer says that there is none: one of `refusals`, or a usual phrase."""
    return without_apostrophes(answer) in refusals or has_refusal(answer)


def word_measures(prediction: Prediction, refusals: Collection[str] = ()) -> dict[str, float]:
    """Return key of `MEASURES` → the value of one free answer, without the undefined ones.

    `refusals` are those of the benchmark (`refusals_of`); without any, no row is said to be refused wrongly.
    """
    answer, context, gold = " ".join(prediction.answer), prediction.context, prediction.gold
    values: dict[str, float | None] = {
        "contained": float(contains_answer(prediction)),
        "context_recall": context_recall(answer, gold, context),
        "answer_in_context": answer_in_context(answer, context),
        "claim_overlap": claim_overlap(answer, context),
    }
    if lacks_answer(prediction):
        values["refusal"] = float(refuses(answer, refusals))
        if values["refusal"]:  # a right refusal claims nothing
            values |= {"answer_in_context": None, "claim_overlap": None}
    elif refusals and prediction.subset != "irrelevant":
        false_refusal = refuses(answer, refusals) and not prediction.right  # a name may have `unknown`
        values |= {"false_refusal": float(false_refusal), "answered": prediction.right}
    return {name: value for name, value in values.items() if value is not None}


def contains_answer(prediction: Prediction) -> bool:
    answer = " ".join(prediction.answer)
    return has_free_answer(prediction) and any(contains(answer, gold) for gold in prediction.gold)


def has_free_answer(prediction: Prediction) -> bool:
    """Return whether a prediction has a context and is free text, of format qa or chat."""
    return prediction.format in ("qa", "chat") and bool(prediction.context.strip())


@lru_cache(maxsize=1 << 14)  # samples share contexts, and several runs answer them
def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in normalise(parted(text)).split() if word not in _IDLE)


@lru_cache(maxsize=1 << 14)
def _sentences(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(words for sentence in segment("en", text) if (words := _words(sentence)))


def _share(words: Collection[str], among: Collection[str]) -> float | None:
    return sum(word in among for word in words) / len(words) if words else None

"""Is a free answer faithful to its context? Shares of words, for answers without a short gold answer.

- **answer in context**: share of the answer's words that are in the context (K-Precision of Adlakha et al., 2024,
  "Evaluating Correctness and Faithfulness of Instruction-Following Models for Question Answering").
- **context recall**: share of the gold answer's words in the context that the answer has too.

Words are those of SQuAD's normalisation, without function words, which every text has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel

from eval.score.metrics import normalise
from eval.score.predictions import Prediction
from eval.score.statistics import Interval, bootstrap_average

_FUNCTION_WORDS = """
about after all also am and any are as at be been before by but can could did do does for from had has have he her his
how i if in into is it its may me must my no not of on or our out she should so some than that their them then there
these they this those to was we were what when where which who why will with would yes you your
"""
_IDLE = frozenset(_FUNCTION_WORDS.split())


class FaithfulnessScores(BaseModel):
    """Means over the answers of a group; fractions with 95 % bootstrap intervals.

    Attributes:
        n: answers to rows with a context.
        answer_in_context: None if all answers are empty.
        context_recall: over the rows whose gold answer has words of the context; None without such a row.
    """

    n: int
    answer_in_context: Interval | None = None
    context_recall: Interval | None = None


def answer_in_context(answer: str, context: str) -> float | None:
    """Return the share of the answer's words that are in the context; None for an answer without words."""
    return _share(_words(answer), Counter(_words(context)))


def context_recall(answer: str, gold: str, context: str) -> float | None:
    """Return the share of the gold answer's words in the context that the answer has; None without such words."""
    known = set(_words(context))
    return _share([word for word in _words(gold) if word in known], Counter(_words(answer)))


def word_shares(prediction: Prediction) -> tuple[float | None, float | None]:
    """Return one prediction's answer in context and its context recall."""
    said = " ".join(prediction.answer)
    context = prediction.context
    return answer_in_context(said, context), context_recall(said, prediction.gold[0], context)


def has_free_answer(prediction: Prediction) -> bool:
    """Return whether a prediction has format chat and a context."""
    return prediction.format == "chat" and bool(prediction.context.strip())


def score_faithfulness(predictions: Sequence[Prediction], *, seed: int = 0) -> FaithfulnessScores | None:
    """Score predictions of format chat; None if none has a context."""
    shares = [word_shares(prediction) for prediction in predictions if has_free_answer(prediction)]
    if not shares:
        return None
    grounded, recalled = ([share for share in of_all if share is not None] for of_all in zip(*shares, strict=True))
    return FaithfulnessScores(
        n=len(shares),
        answer_in_context=bootstrap_average([grounded], seed=seed) if grounded else None,
        context_recall=bootstrap_average([recalled], seed=seed) if recalled else None,
    )


def _words(text: str) -> list[str]:
    return [word for word in normalise(text).split() if word not in _IDLE]


def _share(words: Sequence[str], among: Counter[str]) -> float | None:
    return sum(word in among for word in words) / len(words) if words else None

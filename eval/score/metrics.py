"""Exact match, token-level F1 and set accuracy, and which of them applies how to each of the four formats.

The first two are SQuAD's: text is normalised first, and the best of several accepted answers counts. The paper reports
their mean (PIPER, section 2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eval.score.extract import Extraction
from eval.score.normalise import normalise, option_key


class AnswerScores(NamedTuple):
    """What an answer scores, each in [0, 1]; `set_accuracy` for mcq only."""

    exact_match: float
    f1: float
    set_accuracy: float | None = None


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when the normalised prediction equals any normalised gold answer, else 0.0."""
    return float(normalise(prediction) in {normalise(gold) for gold in golds})


def token_f1(prediction: str, golds: Iterable[str]) -> float:
    """The best F1, in [0, 1], between the prediction's bag of tokens and that of any gold answer.

    Where one side normalises to nothing the score is 1 if both do, else 0 (SQuAD 2.0's script).
    """
    tokens = normalise(prediction).split()
    return max((_f1(tokens, normalise(gold).split()) for gold in golds), default=0.0)


def score_answer(
    fmt: str, extraction: Extraction, gold_answers: Sequence[str], options: Sequence[str] = ()
) -> AnswerScores:
    """The scores of an extracted answer.

    - nli: both metrics are 1 for the right label and 0 for the wrong one; an output without a label scores 0.
    - scq: against the one correct option.
    - mcq: exact match compares texts, as the paper's metric does: the options as the model wrote them one after the
      other, against the correct ones in the prompt's order. So the right options in another order are no match; set
      accuracy, which asks for the same set whatever the order, gives them 1. F1 compares the tokens of all named
      options with those of all correct ones.
    - qa: the best over the accepted answers.

    Args:
        gold_answers: the accepted answers; for mcq all the correct options.
        options: the candidates in the order of the prompt, which orders mcq's correct ones.
    """
    predicted = " ".join(extraction.answers)
    if fmt == "nli":
        right = float(extraction.parsed and predicted == gold_answers[0])
        return AnswerScores(right, right)
    if fmt == "qa":
        return AnswerScores(exact_match(predicted, gold_answers), token_f1(predicted, gold_answers))
    gold = sorted(gold_answers, key=lambda answer: options.index(answer) if answer in options else len(options))
    # By key and not by joined text, which would make one of options that differ in a decimal point alone.
    named, right_ones = [option_key(answer) for answer in extraction.answers], [option_key(answer) for answer in gold]
    exact, f1 = float(named == right_ones), token_f1(predicted, [" ".join(gold)])
    return AnswerScores(exact, f1, float(set(named) == set(right_ones)) if fmt == "mcq" else None)


def _f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = (Counter(predicted) & Counter(gold)).total()
    # 2PR/(P+R) with P = shared/|predicted| and R = shared/|gold|
    return 2 * shared / (len(predicted) + len(gold))

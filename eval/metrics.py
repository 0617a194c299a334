"""Exact match and token-level F1, and which of them applies how to each of the four formats.

Both metrics are SQuAD's: text is normalised first, and the best of several accepted answers counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from eval.extract import Extraction
from eval.normalise import normalise, option_key


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when the normalised prediction equals any normalised gold answer, else 0.0."""
    return float(normalise(prediction) in {normalise(gold) for gold in golds})


def token_f1(prediction: str, golds: Iterable[str]) -> float:
    """The best F1, in [0, 1], between the prediction's bag of tokens and that of any gold answer.

    Where one side normalises to nothing the score is 1 if both do, else 0 (SQuAD 2.0's script).
    """
    tokens = normalise(prediction).split()
    return max((_f1(tokens, normalise(gold).split()) for gold in golds), default=0.0)


def score_answer(fmt: str, extraction: Extraction, gold_answers: Sequence[str]) -> tuple[float, float]:
    """(exact match, F1) of an extracted answer, each in [0, 1].

    - nli: both are 1 for the right label and 0 for the wrong one; an output without a label scores 0.
    - scq: against the one correct option.
    - mcq: exact match compares the sets of options; F1 compares the tokens of all predicted options with
      those of all correct ones, so that neither the order nor the letters matter.
    - qa: the best over the accepted answers.
    """
    predicted = " ".join(extraction.answers)
    if fmt == "nli":
        right = float(extraction.parsed and predicted == gold_answers[0])
        return right, right
    if fmt == "qa":
        return exact_match(predicted, gold_answers), token_f1(predicted, gold_answers)
    same = {option_key(answer) for answer in extraction.answers} == {option_key(gold) for gold in gold_answers}
    return float(same), token_f1(predicted, [" ".join(gold_answers)])


def _f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    shared = (Counter(predicted) & Counter(gold)).total()
    # 2PR/(P+R) with P = shared/|predicted| and R = shared/|gold|
    return 2 * shared / (len(predicted) + len(gold))

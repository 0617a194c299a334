"""Measure how well the question, in nli the hypothesis, predicts the answer without the context.

A dataset whose answers follow from the question does not measure use of the context. There are two baselines. One is
the share of the more frequent label. The other is the five-fold cross-validated accuracy of a classifier of the
hypothesis (word 1- to 3-grams, logistic regression). Rows with the same premise are in the same fold, so that nothing
learnt about a premise helps with another question about it. Options are classified as right or wrong, each with its
question. A free answer is that of the most similar question.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError

FOLDS = 5
INSTALL_SKLEARN = "pip install 'd2e-sft[stats]'"
_PARTS = 3
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class ContextFree:
    """Two baselines that never see the context.

    Attributes:
        contexts: Number of different premises among the rows.
        accuracy: Accuracy of the classifier on rows that it was not trained on; None if there are too few rows.
        standard_error: Standard error of the accuracy, as if rows were independent.
    """

    n: int
    contexts: int
    majority_share: float
    accuracy: float | None
    standard_error: float | None

    @classmethod
    def of(cls, samples: Sequence[EventSample], majority: float, accuracy: float | None) -> ContextFree:
        """Return the baselines of these rows, rounded."""
        contexts = len({sample.context for sample in samples})
        if accuracy is None:
            return cls(len(samples), contexts, round(majority, 4), None, None)
        error = sqrt(accuracy * (1 - accuracy) / len(samples))
        return cls(len(samples), contexts, round(majority, 4), round(accuracy, 4), round(error, 4))


def has_sklearn() -> bool:
    """Return whether scikit-learn is installed; only the classifiers need it."""
    return importlib.util.find_spec("sklearn") is not None


def require_sklearn(what: str) -> None:
    """Raise UserError, with what to install, if scikit-learn is missing."""
    if not has_sklearn():
        raise UserError(f"{what} needs scikit-learn, which is not installed", remedy=INSTALL_SKLEARN)


def hypothesis_alone(samples: Sequence[EventSample], seed: int = 0) -> ContextFree:
    """Return both baselines for the rows of one nli dataset, without scikit-learn only the first."""
    labels = Counter(sample.answers[0] for sample in samples)
    accuracy = held_out_accuracy(samples, [sample.question for sample in samples], seed) if has_sklearn() else None
    return ContextFree.of(samples, max(labels.values()) / len(samples), accuracy)


def question_alone(samples: Sequence[EventSample], seed: int = 0) -> ContextFree:
    """Return both baselines for the rows of one dataset and format; for nli those of `hypothesis_alone`.

    With options, the majority share is that of chance; for free text it is that of the most frequent answer.
    """
    if samples[0].format == "nli":
        return hypothesis_alone(samples, seed)
    if samples[0].options:
        common = sum(len(sample.answers) / len(sample.options) for sample in samples) / len(samples)
    else:
        common = max(Counter(_folded(sample.answers[0]) for sample in samples).values()) / len(samples)
    if len({sample.context for sample in samples}) < 2 * FOLDS:
        return ContextFree.of(samples, common, None)
    guessed = _chosen(samples, seed) if samples[0].options else _borrowed(samples, seed)
    return ContextFree.of(samples, common, float(np.mean(guessed)))


def held_out_accuracy(samples: Sequence[EventSample], texts: Sequence[str], seed: int) -> float | None:
    """Return the accuracy of a classifier of `texts`, one per row, on unseen premises; None for too few rows."""
    answers, contexts = [sample.answers[0] for sample in samples], [sample.context for sample in samples]
    labels = Counter(answers)
    if len(set(contexts)) < 2 * FOLDS or len(labels) < 2 or min(labels.values()) < 2 * FOLDS:
        return None
    # Imported here, since scikit-learn takes a second and only this needs it.
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    classifier = make_pipeline(_vectors(), _regression())
    predicted = cross_val_predict(classifier, texts, answers, groups=contexts, cv=folds)
    return float(np.mean(np.asarray(predicted) == np.asarray(answers)))


def accuracy_by_places(samples: Sequence[EventSample], contexts: Sequence[str], seed: int = 0) -> float | None:
    """Return the accuracy of a classifier that also sees the places of the hypothesis' words; None for too few rows.

    It sees the third of the context in which each word is (`word_0` for the first), and so the order of events, the
    least that a context tells. Where the context does not help it, it cannot compare refiners.

    Args:
        samples: nli rows of one dataset.
        contexts: the visible part of each row's premise.
    """
    texts = []
    for sample, context in zip(samples, contexts, strict=True):
        words = _WORD.findall(context.casefold())
        where: dict[str, set[int]] = {}
        for at, word in enumerate(words):
            where.setdefault(word, set()).add(_PARTS * at // len(words))
        asked = _WORD.findall(sample.question.casefold())
        places = [f"{word}_{part}" for word in asked for part in sorted(where.get(word, ()))]
        texts.append(" ".join([sample.question, *places]))
    return held_out_accuracy(samples, texts, seed)


def _vectors() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # With words of one letter and stop words: "not", "before" and "a" predict labels.
    return HashingVectorizer(ngram_range=(1, 3), token_pattern=r"\w+", n_features=2**18, alternate_sign=False)


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=1_000)


def _chosen(samples: Sequence[EventSample], seed: int) -> list[bool]:
    """Whether the option that a classifier finds most likely right is right, for each row in its fold."""
    rows = [place for place, sample in enumerate(samples) for _ in sample.options]
    pairs = [(sample, option) for sample in samples for option in sample.options]
    texts = _vectors().transform(f"{sample.question} {option}" for sample, option in pairs)
    right = np.array([option in sample.answers for sample, option in pairs])
    scores = np.zeros(len(pairs))
    for known, asked in _folds([samples[place] for place in rows], seed):
        scores[asked] = _regression().fit(texts[known], right[known]).decision_function(texts[asked])
    best: dict[int, int] = {}
    for place, row in enumerate(rows):
        if row not in best or scores[place] > scores[best[row]]:
            best[row] = place
    return [bool(right[best[row]]) for row in range(len(samples))]


def _borrowed(samples: Sequence[EventSample], seed: int) -> list[bool]:
    """Whether the answer to the most similar question of another fold is accepted, for each row."""
    texts = _vectors().transform(sample.question for sample in samples)
    accepted = [False] * len(samples)
    for known, asked in _folds(samples, seed):
        nearest = known[np.asarray((texts[asked] @ texts[known].T).argmax(axis=1)).ravel()]
        for row, other in zip(asked, nearest, strict=True):
            accepted[row] = _folded(samples[other].answers[0]) in map(_folded, samples[row].answers)
    return accepted


def _folds(samples: Sequence[EventSample], seed: int) -> list[tuple[Any, Any]]:
    """Five pairs of known and asked rows; rows with the same context are in one fold."""
    from sklearn.model_selection import GroupKFold

    contexts = [sample.context for sample in samples]
    return list(GroupKFold(FOLDS, shuffle=True, random_state=seed).split(contexts, groups=contexts))


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))

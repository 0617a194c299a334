"""How far the hypothesis of an nli sample gives its label away, without the premise.

A dataset whose labels can be told from the hypothesis alone does not measure reading. Two numbers say how far that
goes: the share of the more frequent label, which needs to know nothing, and the accuracy of a classifier that sees
the hypothesis only (word 1- to 3-grams, logistic regression), trained on four fifths of the rows and tested on the
rest, five times. Rows with the same premise are always in the same fifth: what a classifier learns about one
dialogue must not help it with another question about the same dialogue.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError

FOLDS = 5


@dataclass(frozen=True)
class ContextFree:
    """Two baselines that never see the context.

    Attributes:
        n: rows.
        contexts: different premises among them.
        majority_share: of the more frequent label.
        accuracy: of the classifier on rows that it was not trained on; None where there are too few rows to tell.
        standard_error: of the accuracy, as if rows were independent.
    """

    n: int
    contexts: int
    majority_share: float
    accuracy: float | None
    standard_error: float | None


def refuse_without_sklearn() -> None:
    """Say what to install where scikit-learn, which only the classifier needs, is not there.

    Raises:
        UserError: it is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise UserError(
            "nli rows: the accuracy of the hypothesis alone needs scikit-learn, which is not installed",
            remedy="pip install 'd2e-sft[stats]'",
        )


def hypothesis_alone(samples: Sequence[EventSample], seed: int = 0) -> ContextFree:
    """Both baselines for the rows of one nli dataset.

    Args:
        seed: of the division into five parts.
    """
    labels, contexts = _counted(samples)
    majority = round(max(labels.values()) / len(samples), 4)
    accuracy = held_out_accuracy(samples, [sample.question for sample in samples], seed)
    if accuracy is None:
        return ContextFree(len(samples), contexts, majority, None, None)
    error = sqrt(accuracy * (1 - accuracy) / len(samples))
    return ContextFree(len(samples), contexts, majority, round(accuracy, 4), round(error, 4))


def held_out_accuracy(samples: Sequence[EventSample], texts: Sequence[str], seed: int) -> float | None:
    """Of the classifier that sees these texts, one a row, on rows whose premises it was not trained on.

    None where there are too few rows to tell: some part could lack a label or a premise of its own.
    """
    labels, contexts = _counted(samples)
    if contexts < 2 * FOLDS or len(labels) < 2 or min(labels.values()) < 2 * FOLDS:
        return None
    return float(np.mean(_held_out_hits(samples, texts, seed)))


def _counted(samples: Sequence[EventSample]) -> tuple[Counter[str], int]:
    """Rows of each label, and different premises."""
    return Counter(sample.answers[0] for sample in samples), len({sample.context for sample in samples})


def _held_out_hits(samples: Sequence[EventSample], texts: Sequence[str], seed: int) -> np.ndarray:
    """For each row whether the classifier that was not trained on its premise tells its label."""
    # scikit-learn takes a second to import, which nothing but this needs.
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    labels = [sample.answers[0] for sample in samples]
    classifier = make_pipeline(
        # Words of one letter count too, and so do stop words: "not", "before" and "a" give labels away.
        HashingVectorizer(ngram_range=(1, 3), token_pattern=r"\w+", n_features=2**18, alternate_sign=False),
        LogisticRegression(C=10.0, max_iter=1_000),
    )
    predicted = cross_val_predict(
        classifier,
        texts,
        labels,
        groups=[sample.context for sample in samples],
        cv=StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed),
    )
    return np.asarray(predicted) == np.asarray(labels)

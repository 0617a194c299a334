"""Measure how well the question, in nli the hypothesis, predicts the answer without the context.

A dataset whose answers follow from the question does not measure use of the context. There are two baselines. One is
the share of the more frequent label. The other is the five-fold cross-validated accuracy of a classifier of the
hypothesis (word 1- to 3-grams, logistic regression). Rows with the same premise are in the same fold, so that nothing
learnt about a premise helps with another question about it. Options are classified as right or wrong, each with its
question. A free answer is the one that the five most similar questions vote for. `guesses` gives these answers, row by
row: the habit of the rows themselves.
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
from d2e_sft.util.terminal import warn

FOLDS = 5
_VOTERS = 5  # questions whose answers are counted
INSTALL_SKLEARN = "pip install 'd2e-sft[stats]'"
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


def require_sklearn(purpose: str) -> None:
    """Raise UserError, with what to install, if scikit-learn is missing."""
    if not has_sklearn():
        raise UserError(f"{purpose} needs scikit-learn, which is not installed", remedy=INSTALL_SKLEARN)


def hypothesis_alone(samples: Sequence[EventSample], seed: int = 0) -> ContextFree:
    """Return both baselines for rows with labels (nli); without scikit-learn, or for few rows, only the first."""
    answers, contexts = [sample.answers[0] for sample in samples], [sample.context for sample in samples]
    labels = Counter(answers)
    common = max(labels.values()) / len(samples)
    too_few = len(set(contexts)) < 2 * FOLDS or len(labels) < 2 or min(labels.values()) < 2 * FOLDS
    if too_few or not has_sklearn():
        return ContextFree.of(samples, common, None)
    # Imported here, since scikit-learn takes a second and only this needs it.
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    questions = [sample.question for sample in samples]
    folds = list(StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed).split(questions, answers, contexts))
    if any(len({answers[place] for place in known}) < 2 for known, _ in folds):  # all rows of a label share a context
        return ContextFree.of(samples, common, None)
    classifier = make_pipeline(_vectors(), _regression())
    predicted = cross_val_predict(classifier, questions, answers, cv=folds)
    return ContextFree.of(samples, common, float(np.mean(np.asarray(predicted) == np.asarray(answers))))


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
    if (guessed := guesses(samples, seed)) is None:
        return ContextFree.of(samples, common, None)
    right = [_is_right(sample, answer) for sample, (answer, _) in zip(samples, guessed, strict=True)]
    return ContextFree.of(samples, common, float(np.mean(right)))


def _vectors() -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # With words of one letter and stop words: "not", "before" and "a" predict labels.
    return HashingVectorizer(ngram_range=(1, 3), token_pattern=r"\w+", n_features=2**18, alternate_sign=False)


def _regression() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=1_000)


Guess = tuple[str, float]  # an answer, empty if no question is alike, and how sure it is: 0 to 1


def _is_right(sample: EventSample, answer: str) -> bool:
    key = str if sample.candidates else _folded
    return key(answer) in map(key, sample.answers)


def guesses(samples: Sequence[EventSample], seed: int = 0) -> list[Guess] | None:
    """Return what the questions of other contexts make of each row of one dataset and format; None for too few.

    Training rows teach, or all rows if there are none. An option's confidence is its share, rescaled so that chance
    is 0. That of free text is the similarity of the questions with this answer, as a share of the most possible.
    """
    if len({sample.context for sample in samples}) < 2 * FOLDS:
        return None
    from sklearn.model_selection import GroupKFold

    contexts = [sample.context for sample in samples]
    teaches = np.array([sample.split == "train" for sample in samples])
    teaches = teaches if teaches.any() else ~teaches
    by_place, guessed = dict[int, Guess](), _chosen if samples[0].candidates else _borrowed
    for known, test in GroupKFold(FOLDS, shuffle=True, random_state=seed).split(contexts, groups=contexts):
        parts = [[samples[place] for place in places] for places in (known[teaches[known]], test)]
        if not parts[0]:
            return None
        by_place |= zip(test.tolist(), guessed(*parts), strict=True)
    return [by_place[place] for place in range(len(samples))]


def guess_habits(samples: Sequence[EventSample], data: str) -> list[Guess]:
    """Return the guess for each row of any datasets and formats; UserError without any. `data` is for messages."""
    require_sklearn(f"{data}: --by questions")
    groups, result = dict[tuple[str, str], list[int]](), [("", 0.0)] * len(samples)
    for place, sample in enumerate(samples):
        groups.setdefault((sample.dataset, sample.format), []).append(place)
    by_group = {key: guesses([samples[place] for place in places]) for key, places in groups.items()}
    for key, places in groups.items():
        for place, guess in zip(places, by_group[key] or (), strict=False):
            result[place] = guess
    few = [f"{len(groups[key]):,} rows of {key[0]} ({key[1]})" for key, guessed in by_group.items() if guessed is None]
    problem = f"{data}: fewer than {2 * FOLDS} different contexts in {', '.join(few)}"
    if len(few) == len(groups):
        raise UserError(f"{problem}; no question can be guessed from others", "add rows, or ask a model: --model NAME")
    if few:
        warn(f"{problem}; they have no habit")
    return result


def _chosen(known: Sequence[EventSample], test: Sequence[EventSample]) -> list[Guess]:
    """The candidate that a classifier finds most likely right, for each asked row."""

    def pairs(rows: Sequence[EventSample]) -> Any:
        return _vectors().transform(f"{row.question} {option}" for row in rows for option in row.candidates)

    if known[0].format == "nli":  # a label has no words of its own, so the classifier is one of the question
        texts, test_texts = (_vectors().transform(row.question for row in rows) for rows in (known, test))
        right = np.array([row.answers[0] == known[0].candidates[0] for row in known])
        first = _likely(texts, right, test_texts)
        scores = np.stack([first, 1 - first], axis=1).ravel()
    else:
        right = np.array([option in row.answers for row in known for option in row.candidates])
        scores = _likely(pairs(known), right, pairs(test))
    result, start = list[Guess](), 0
    for row in test:
        p = scores[start : start + len(row.candidates)]
        start, best, chance = start + len(p), int(np.argmax(p)), 1 / len(p)
        share, chance = (p[best], 0.5) if row.format == "mcq" else (p[best] / p.sum(), chance)
        confidence = max(0.0, (share - chance) / (1 - chance)) if chance < 1 else 1.0
        result.append((row.candidates[best], float(confidence)))
    return result


def _likely(known: Any, right: Any, test: Any) -> Any:
    """The probability that each asked text is right."""
    if len(set(right.tolist())) < 2:  # all known ones are, or none
        return np.full(test.shape[0], float(right[0]))
    return _regression().fit(known, right).predict_proba(test)[:, 1]


def _borrowed(known: Sequence[EventSample], test: Sequence[EventSample]) -> list[Guess]:
    """The answer that the most similar known questions vote for, each by its similarity, for each asked row."""
    texts, known_texts = (_vectors().transform(row.question for row in rows) for rows in (test, known))
    answers, result = [_folded(row.answers[0]) for row in known], list[Guess]()
    for row in range(len(test)):
        count, like = min(_VOTERS, len(known)), (texts[row] @ known_texts.T).toarray().ravel()
        # All that are as similar as the fifth: many questions are repeated.
        voters = np.flatnonzero((like > 0) & (like >= np.partition(like, -count)[-count] - 1e-9))
        votes = dict[str, float]()
        for place in sorted(voters, key=lambda place: -like[place]):
            votes[answers[place]] = votes.get(answers[place], 0.0) + float(like[place])
        best = max(votes, key=lambda answer: votes[answer], default="")
        guess = next((known[int(place)].answers[0] for place in voters if answers[place] == best), "")
        result.append((guess, min(1.0, votes.get(best, 0.0) / max(1, len(voters)))))
    return result


def _folded(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))

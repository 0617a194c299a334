"""Find overlap between a training set and benchmark sets: the same raw row, context or question.

What counts as an overlap, by key:

- **id**: Both rows come from one raw row (dataset, raw file and place in it, or the publishers' id of the row). Or
  they are the same sample (dataset, split and id).
- **context**: The contexts are equal, ignoring letter case, blanks and punctuation.
- **question**: Question and options are equal, ignoring letter case, blanks, punctuation and the order of the options.

Two kinds of equality are counted separately, as *set aside*: texts of fewer than 5 words, which are equal by accident
("It rained."), and templates. These are questions about 3 or more different contexts within one set ("What is the
cause of the event in the context?"). If context and question are both equal, the overlap always counts.

A question about different contexts in the two sets counts, although its answer may differ. The imagined view has only
the question, so it would be trained on a question of the benchmark.

Near-duplicates are contexts and questions (with their options) whose sets of n consecutive words have a Jaccard
similarity at or above a threshold, with n = 5. One changed word changes five 5-grams, so a sentence of ten words could
never be near another: texts of fewer than 40 words are compared by 3-grams. So are a short text and a longer one that
can still reach the threshold. Near-duplicates are reported for a person to judge.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import words
from d2e_sft.util.progress import Progress
from data_builders.dataset import SampleSet, source_of

Key = Literal["id", "context", "question"]
Words = tuple[str, ...]
Group = tuple[str, str, str, Key]  # training dataset, test set, benchmark dataset, key
KEYS: tuple[Key, ...] = get_args(Key)
NEAR_KEYS: tuple[Key, ...] = ("context", "question")
THRESHOLD = 0.8
LEAST_WORDS = 5
TEMPLATE_CONTEXTS = 3
SHORT_TEXT = 40  # words
SHORT_GRAM, LONG_GRAM = 3, 5
# Publishers' ids of rows, in `meta`; they are valid for all files of a dataset.
_NATIVE_IDS = ("idx", "story_id")


class Match(NamedTuple):
    """A training row and a benchmark row that it overlaps with.

    `similarity` is 1 for an exact match; `text` is the training row's id, context or question.
    """

    key: Key
    train_dataset: str
    train_id: str
    test_set: str
    test_dataset: str
    test_id: str
    similarity: float
    text: str

    @property
    def train(self) -> tuple[str, str]:
        return self.train_dataset, self.train_id

    @property
    def pair(self) -> tuple[str, str, str]:
        return self.train_dataset, self.train_id, self.test_dataset

    @property
    def group(self) -> Group:
        return self.train_dataset, self.test_set, self.test_dataset, self.key


class Cell(NamedTuple):
    """Counts of a group: training rows with an exact match that counts, benchmark rows in such matches, and more.

    `near` are training rows with a near-duplicate and no exact match; `set_aside` are those whose only match is short,
    a template, or a question about another context.
    """

    train_dataset: str
    test_set: str
    test_dataset: str
    key: Key
    exact: int
    test_rows: int
    near: int
    set_aside: int


@dataclass
class Overlap:
    """Overlap of the training set with the benchmark sets.

    Attributes:
        exact: One match with each benchmark dataset for each training row and key.
        near: The most similar row of each benchmark dataset for each training row and key; most similar first.
        groups: All groups, in the order of the sets → benchmark rows in exact matches.
        set_aside: Group → training rows whose only match is short or a template.
    """

    train_rows: int
    threshold: float
    exact: list[Match] = field(default_factory=list)
    near: list[Match] = field(default_factory=list)
    repeated: list[Match] = field(default_factory=list)
    groups: dict[Group, set[str]] = field(default_factory=dict)
    set_aside: Counter[Group] = field(default_factory=Counter)

    @property
    def cells(self) -> list[Cell]:
        """The counts that are not all zero, in the order of the sets."""
        exact, near, repeated = (
            Counter(match.group for match in matches) for matches in (self.exact, self.near, self.repeated)
        )
        aside = self.set_aside + repeated
        cells = [Cell(*group, exact[group], len(ids), near[group], aside[group]) for group, ids in self.groups.items()]
        return [cell for cell in cells if cell.exact or cell.near or cell.set_aside]

    def set_questions_aside(self, train: Iterable[EventSample]) -> None:
        """Move free questions about different contexts from `exact` to `repeated`; they are normal in one dataset.

        Customers ask the same about many orders; only an equal context or row is a leak. Repeated options or
        hypotheses stay.
        """
        free = {(sample.dataset, sample.id) for sample in train if sample.format in ("qa", "chat")}
        leaks = {match.pair for match in self.exact if match.key != "question"}
        leaks |= {match.pair for match in self.near if match.key == "context"}
        questions = [match for match in self.exact if match.key == "question" and match.train in free]
        moving = {match for match in questions if match.pair not in leaks}
        self.repeated += [match for match in self.exact if match in moving]
        self.exact = [match for match in self.exact if match not in moving]

    def rows(self, matches: Sequence[Match]) -> int:
        """Return the number of training rows in the matches."""
        return len({match.train for match in matches})

    def to_json(self) -> dict[str, Any]:
        return {
            "train_rows": self.train_rows,
            "threshold": self.threshold,
            "least_words": LEAST_WORDS,
            "template_contexts": TEMPLATE_CONTEXTS,
            "overlapping_rows": self.rows(self.exact),
            "near_duplicate_rows": self.rows(self.near),
            "cells": [cell._asdict() for cell in self.cells],
            "exact": [match._asdict() for match in self.exact],
            "near": [match._asdict() for match in self.near],
            "repeated_questions": [match._asdict() for match in self.repeated],
        }


def find_overlap(
    train: Sequence[EventSample],
    tests: Sequence[SampleSet],
    threshold: float = THRESHOLD,
    *,
    train_templates: bool = True,
) -> Overlap:
    """Return exact and near overlap of a training set with each benchmark set.

    With `train_templates`, templates of the training set are set aside, too, not only those of the benchmark.
    """
    rows = [_KeyedRow(sample) for sample in train]
    result = Overlap(len(rows), threshold)
    for test in tests:
        test_rows = [_KeyedRow(sample) for sample in test.samples]
        templates = _templates(test_rows) | _templates(rows if train_templates else ())
        for row in (*rows, *test_rows):
            row.is_specific = len(row.words["question"]) >= LEAST_WORDS and row.question not in templates
        _compare(rows, test_rows, test.name, result)
    result.near.sort(key=lambda match: -match.similarity)
    return result


def exclude_overlap(
    samples: Sequence[EventSample], tests: Sequence[SampleSet], threshold: float = THRESHOLD
) -> list[EventSample]:
    """Return the samples without an exact overlap that counts and without a near-duplicate.

    Only templates of the benchmark are set aside as templates. A question about many contexts in all samples may have
    only one context in a part drawn from them, and `find_overlap` must find no overlap in any part.
    """
    overlap = find_overlap(samples, tests, threshold, train_templates=False)
    leaving = {match.train for match in [*overlap.exact, *overlap.near]}
    return [sample for sample in samples if (sample.dataset, sample.id) not in leaving]


class _KeyedRow:
    """A sample with its keys.

    Attributes:
        words: Words of the context, and of the question with its options.
        context, question: The texts without letter case, blanks and punctuation.
        is_specific: Whether the question is long enough and not a template.
    """

    def __init__(self, sample: EventSample) -> None:
        self.sample = sample
        self.words: dict[Key, Words] = {
            "context": _words(sample.context),
            "question": _words(sample.question, *sorted(sample.options)),
        }
        self.context = "".join(self.words["context"])
        # Options are kept separate, so that ("a", "bc") and ("ab", "c") differ.
        self.question = ("".join(_words(sample.question)), *sorted("".join(_words(o)) for o in sample.options))
        self.keys: list[tuple[Key, Hashable]] = [("id", name) for name in self._ids()]
        if self.context:
            self.keys.append(("context", self.context))
        self.keys.append(("question", self.question))
        self.is_specific = True

    def _ids(self) -> Iterator[Hashable]:
        """Yield what identifies the sample, or the raw row that it was made from."""
        sample, meta, source = self.sample, self.sample.meta, source_of(self.sample)
        yield ("sample", sample.dataset, sample.split, sample.id)
        for place in ("line", "item"):
            if "source" in meta and place in meta:
                yield ("row", source, str(meta["source"]), place, str(meta[place]))
        for name in _NATIVE_IDS:
            if name in meta:
                yield (name, source, str(meta[name]))

    def counts_as(self, key: Key, other: _KeyedRow) -> bool:
        """Return whether an equal key of the other row counts."""
        counts = {"id": True, "context": len(self.words["context"]) >= LEAST_WORDS, "question": self.is_specific}[key]
        return counts or (other.context == self.context and other.question == self.question)


def _words(*texts: str) -> Words:
    # Interned, since words repeat a hundred times in a set of samples.
    return tuple(map(sys.intern, words(" ".join(texts))))


def _templates(rows: Iterable[_KeyedRow]) -> set[tuple[str, ...]]:
    contexts: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        contexts[row.question].add(row.context)
    return {question for question, asked_of in contexts.items() if len(asked_of) >= TEMPLATE_CONTEXTS}


def _compare(train: Sequence[_KeyedRow], tests: Sequence[_KeyedRow], test_set: str, result: Overlap) -> None:
    by_key: dict[tuple[Key, Hashable], list[_KeyedRow]] = defaultdict(list)
    for test in tests:
        for name in test.keys:
            by_key[name].append(test)
    ours, theirs = (dict.fromkeys(row.sample.dataset for row in rows) for rows in (train, tests))
    result.groups |= {(dataset, test_set, their, key): set() for dataset in ours for their in theirs for key in KEYS}
    matched: set[tuple[Key, int, str]] = set()
    for place, row in enumerate(Progress(train, desc=f"compared with {test_set}", unit="row")):
        first: dict[Group, _KeyedRow | None] = {}  # None if no match counts
        for key, value in row.keys:
            for test in by_key.get((key, value), ()):
                group, counts = (row.sample.dataset, test_set, test.sample.dataset, key), row.counts_as(key, test)
                if counts:
                    result.groups[group].add(test.sample.id)
                first[group] = first.get(group) or (test if counts else None)
        for group, match in first.items():
            if match is None:
                result.set_aside[group] += 1
                continue
            *_, dataset, key = group
            matched.add((key, place, dataset))
            result.exact.append(_match(key, row, test_set, match, 1.0))
    for key in NEAR_KEYS:
        for place, test, similarity in _near(key, train, tests, result.threshold):
            if (key, place, test.sample.dataset) not in matched:
                result.near.append(_match(key, train[place], test_set, test, similarity))


def _match(key: Key, row: _KeyedRow, test_set: str, test: _KeyedRow, similarity: float) -> Match:
    ours, theirs = row.sample, test.sample
    texts = {"id": ours.id, "context": ours.context, "question": " | ".join([ours.question, *ours.options])}
    place = (ours.dataset, ours.id, test_set, theirs.dataset, theirs.id)
    return Match(key, *place, round(similarity, 4), texts[key])


def _near(
    key: Key, train: Sequence[_KeyedRow], test: Sequence[_KeyedRow], threshold: float
) -> Iterator[tuple[int, _KeyedRow, float]]:
    """Yield (place of a training row, most similar row, similarity) for each training row and benchmark dataset."""
    ours, theirs = _by_text(key, train), _by_text(key, test)
    left, right = list(ours), list(theirs)
    best: dict[tuple[int, str], tuple[float, int]] = {}
    for (i, j), similarity in near_pairs(left, right, threshold).items():
        first = {test[place].sample.dataset: place for place in reversed(theirs[right[j]])}
        for dataset, test_place in first.items():
            for place in ours[left[i]]:
                if similarity > best.get((place, dataset), (0.0, 0))[0]:
                    best[place, dataset] = (similarity, test_place)
    for (place, _), (similarity, test_place) in sorted(best.items()):
        yield place, test[test_place], similarity


def _by_text(key: Key, rows: Sequence[_KeyedRow]) -> dict[Words, list[int]]:
    places: dict[Words, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if len(row.words[key]) >= LEAST_WORDS and (key == "context" or row.is_specific):
            places[row.words[key]].append(place)
    return places


def near_pairs(left: Sequence[Words], right: Sequence[Words], threshold: float) -> dict[tuple[int, int], float]:
    """Return the similarity of each pair of a left and a right text that reaches a `threshold` above 0, by places.

    The result is exact. Near texts share at least the share `threshold` of their n-grams, so one of the few rarest is
    in both. Only such texts are compared (prefix filter, Chaudhuri et al. 2006).
    """
    similar: dict[tuple[int, int], float] = {}
    for gram, least, most in ((SHORT_GRAM, SHORT_GRAM, ceil(SHORT_TEXT / threshold)), (LONG_GRAM, SHORT_TEXT, 0)):
        theirs = dict(_grams(right, gram, least, most))
        index: dict[Words, list[int]] = defaultdict(list)
        for j, grams in theirs.items():
            for words_of_gram in grams:
                index[words_of_gram].append(j)
        for i, grams in Progress(_grams(left, gram, least, most), desc="near-duplicates", unit="text"):
            shared = sorted(filter(index.__contains__, grams), key=lambda words_of_gram: len(index[words_of_gram]))
            needed = ceil(threshold * len(grams) - 1e-9)  # less the rounding of the product
            rarest = shared[: max(0, len(shared) - needed + 1)]
            for j in {j for words_of_gram in rarest for j in index[words_of_gram]}:
                common = len(grams & theirs[j])
                if (similarity := common / (len(grams) + len(theirs[j]) - common)) >= threshold:
                    similar[i, j] = max(similarity, similar.get((i, j), 0.0))
    return dict(sorted(similar.items()))


def _grams(texts: Sequence[Words], gram: int, least: int, most: int) -> Iterator[tuple[int, frozenset[Words]]]:
    """Yield place and n-grams of the texts of `least` words or more and fewer than `most` (0 for no limit)."""
    for place, text in enumerate(texts):
        if least <= len(text) and (not most or len(text) < most):
            yield place, frozenset(zip(*(text[start:] for start in range(gram)), strict=False))

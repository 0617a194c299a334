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

Near-duplicates are contexts and questions (with their options) whose word n-grams have a Jaccard similarity at or
above a threshold (`near_duplicates.py`). They are reported for a person to judge.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from d2e_sft.data.sample import EventSample
from d2e_sft.util.progress import Progress
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.near_duplicates import Words, near_pairs
from data_builders.quality.row_keys import LEAST_WORDS, TEMPLATE_CONTEXTS, Key, KeyedRow, MatchIndex

KEYS: tuple[Key, ...] = get_args(Key)
NEAR_KEYS: tuple[Key, ...] = ("context", "question")
THRESHOLD = 0.8


@dataclass(frozen=True)
class Match:
    """A training row and a benchmark row that it overlaps with.

    Attributes:
        similarity: 1 for an exact match, else the Jaccard similarity.
        text: the training row's id, context or question.
    """

    key: Key
    train_dataset: str
    train_id: str
    test_set: str
    test_dataset: str
    test_id: str
    similarity: float
    text: str


@dataclass
class Cell:
    """Counts for one training dataset, one benchmark dataset and one key.

    Attributes:
        exact: Training rows with an exact match that counts.
        test_rows: Benchmark rows in such matches.
        near: Training rows with a near-duplicate and no exact match.
        set_aside: Training rows whose only match is short or a template.
    """

    train_dataset: str
    test_set: str
    test_dataset: str
    key: Key
    exact: int = 0
    test_rows: int = 0
    near: int = 0
    set_aside: int = 0


@dataclass
class Overlap:
    """Overlap of the training set with the benchmark sets.

    Attributes:
        cells: Counts that are not all zero, in the order of the sets.
        exact: One match with each benchmark dataset for each training row and key.
        near: The most similar row of each benchmark dataset for each training row and key; most similar first.
        repeated: Matches removed by `set_questions_aside`.
    """

    train_rows: int
    threshold: float
    cells: list[Cell] = field(default_factory=list)
    exact: list[Match] = field(default_factory=list)
    near: list[Match] = field(default_factory=list)
    repeated: list[Match] = field(default_factory=list)

    def set_questions_aside(self, train: Iterable[EventSample]) -> None:
        """Move free questions about different contexts from `exact` to `repeated`; they are normal in one dataset.

        Customers ask the same about many orders; only an equal context or row is a leak. Repeated options or
        hypotheses stay.
        """
        free = {(sample.dataset, sample.id) for sample in train if sample.format in ("qa", "chat")}
        leaks = {_pair(match) for match in self.exact if match.key != "question"}
        leaks |= {_pair(match) for match in self.near if match.key == "context"}
        asked = [
            match
            for match in self.exact
            if match.key == "question" and _pair(match) not in leaks and (match.train_dataset, match.train_id) in free
        ]
        self.repeated += asked
        moving = set(asked)
        self.exact = [match for match in self.exact if match not in moving]
        counts = Counter((match.train_dataset, match.test_set, match.test_dataset) for match in asked)
        for cell in self.cells:
            moved = counts[cell.train_dataset, cell.test_set, cell.test_dataset] if cell.key == "question" else 0
            cell.exact, cell.set_aside = cell.exact - moved, cell.set_aside + moved

    def rows(self, matches: Sequence[Match]) -> int:
        """Return the number of training rows in the matches."""
        return len({(match.train_dataset, match.train_id) for match in matches})

    def to_json(self) -> dict[str, Any]:
        return {
            "train_rows": self.train_rows,
            "threshold": self.threshold,
            "least_words": LEAST_WORDS,
            "template_contexts": TEMPLATE_CONTEXTS,
            "overlapping_rows": self.rows(self.exact),
            "near_duplicate_rows": self.rows(self.near),
            "cells": [asdict(cell) for cell in self.cells],
            "exact": [asdict(match) for match in self.exact],
            "near": [asdict(match) for match in self.near],
            "repeated_questions": [asdict(match) for match in self.repeated],
        }


def find_overlap(
    train: Sequence[EventSample],
    tests: Sequence[SampleSet],
    threshold: float = THRESHOLD,
    *,
    train_templates: bool = True,
) -> Overlap:
    """Return exact and near overlap of a training set with each benchmark set.

    Near-duplicates have a Jaccard similarity of at least `threshold`. With `train_templates`, templates of the
    training set are set aside, too, not only those of the benchmark.
    """
    rows = [KeyedRow(sample) for sample in train]
    result = Overlap(len(rows), threshold)
    for test in tests:
        others = [KeyedRow(sample) for sample in test.samples]
        _compare(rows, others, test.name, MatchIndex(rows if train_templates else (), others), result)
    result.near.sort(key=lambda match: -match.similarity)
    return result


def exclude_overlap(
    samples: Sequence[EventSample], tests: Sequence[SampleSet], threshold: float = THRESHOLD
) -> list[EventSample]:
    """Return the samples without an exact overlap that counts and without a near-duplicate.

    Only templates of the benchmark are set aside as templates. A question about many contexts in all samples may have
    only one context in a part drawn from them, and `find_overlap` must find no overlap in any part.
    """
    found = find_overlap(samples, tests, threshold, train_templates=False)
    leaving = {(match.train_dataset, match.train_id) for match in [*found.exact, *found.near]}
    return [sample for sample in samples if (sample.dataset, sample.id) not in leaving]


def _pair(match: Match) -> tuple[str, str, str]:
    return match.train_dataset, match.train_id, match.test_dataset


def _compare(
    train: Sequence[KeyedRow], others: Sequence[KeyedRow], test_set: str, index: MatchIndex, result: Overlap
) -> None:
    trained = dict.fromkeys(row.sample.dataset for row in train)
    tested = dict.fromkeys(row.sample.dataset for row in others)
    cells = {(own, other, key): Cell(own, test_set, other, key) for own in trained for other in tested for key in KEYS}
    concerned: dict[tuple[str, str, Key], set[str]] = defaultdict(set)
    matched: set[tuple[Key, int, str]] = set()
    for place, row in enumerate(Progress(train, desc=f"compared with {test_set}", unit="row")):
        first: dict[tuple[str, Key], KeyedRow | None] = {}  # None if no match counts
        for key, counts, other in index.matches(row):
            dataset = other.sample.dataset
            if counts:
                concerned[row.sample.dataset, dataset, key].add(other.sample.id)
            first[dataset, key] = first.get((dataset, key)) or (other if counts else None)
        for (dataset, key), found in first.items():
            cell = cells[row.sample.dataset, dataset, key]
            if found is None:
                cell.set_aside += 1
                continue
            cell.exact += 1
            matched.add((key, place, dataset))
            result.exact.append(_match(key, row, test_set, found, 1.0))
    for key in NEAR_KEYS:
        for place, other, similarity in _near(key, train, others, index, result.threshold):
            row, dataset = train[place], other.sample.dataset
            if (key, place, dataset) not in matched:
                cells[row.sample.dataset, dataset, key].near += 1
                result.near.append(_match(key, row, test_set, other, similarity))
    for name, cell in cells.items():
        cell.test_rows = len(concerned[name])
    result.cells += [cell for cell in cells.values() if cell.exact or cell.near or cell.set_aside]


def _near(
    key: Key, train: Sequence[KeyedRow], test: Sequence[KeyedRow], index: MatchIndex, threshold: float
) -> Iterator[tuple[int, KeyedRow, float]]:
    """Yield (place of a training row, most similar row, similarity) for each training row and benchmark dataset."""
    ours, theirs = _by_text(key, train, index), _by_text(key, test, index)
    left, right = list(ours), list(theirs)
    best: dict[tuple[int, str], tuple[float, int]] = {}
    for (i, j), similarity in near_pairs(left, right, threshold).items():
        first = {test[place].sample.dataset: place for place in reversed(theirs[right[j]])}
        for dataset, found in first.items():
            for place in ours[left[i]]:
                if similarity > best.get((place, dataset), (0.0, 0))[0]:
                    best[place, dataset] = (similarity, found)
    for (place, _), (similarity, found) in sorted(best.items()):
        yield place, test[found], similarity


def _by_text(key: Key, rows: Sequence[KeyedRow], index: MatchIndex) -> dict[Words, list[int]]:
    places: dict[Words, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if len(row.words[key]) >= LEAST_WORDS and (key == "context" or index.is_specific(row)):
            places[row.words[key]].append(place)
    return places


def _match(key: Key, row: KeyedRow, test_set: str, other: KeyedRow, similarity: float) -> Match:
    ours, theirs = row.sample, other.sample
    texts = {"id": ours.id, "context": ours.context, "question": " | ".join([ours.question, *ours.options])}
    place = (ours.dataset, ours.id, test_set, theirs.dataset, theirs.id)
    return Match(key, *place, round(similarity, 4), texts[key])

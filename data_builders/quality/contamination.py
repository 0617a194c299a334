"""Overlap between a training set and the benchmark sets: the same raw row, the same context, the same question.

What counts as an overlap, by key:

- **id**: both rows come from one raw row (dataset, raw file and place in it, or the publishers' own id of the row),
  or they are one and the same sample (dataset, split and id).
- **context**: the contexts are equal, letter case, blanks and punctuation aside.
- **question**: question and options are equal, letter case, blanks, punctuation and the order of the options aside.

Two kinds of equality say nothing and are counted apart, as *set aside*: texts of fewer than 5 words, which are equal
by accident ("It rained."), and templates, which are questions asked of 3 or more different contexts within one set
("What is the cause of the event in the context?"). Where context and question are both equal the samples are the
same, and that always counts.

A question that one set asks of one context and the other set of another does count: its answer may differ, but the
imagined view, which shows the question alone, would be trained on a question of the benchmark.

Near-duplicates are contexts and questions (with their options) whose word n-grams have a Jaccard similarity at or
above a threshold (`near_duplicates.py`). They are reported and are for a person to judge.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from d2e_sft.data.sample import EventSample
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.near_duplicates import Words, near_pairs
from data_builders.text.stems import words

Key = Literal["id", "context", "question"]
KEYS: tuple[Key, ...] = get_args(Key)
NEAR_KEYS: tuple[Key, ...] = ("context", "question")
THRESHOLD = 0.8
LEAST_WORDS = 5
TEMPLATE_CONTEXTS = 3
# Ids that publishers gave their rows, in `meta`; they hold whatever file a row was read from.
_NATIVE_IDS = ("idx", "story_id")


@dataclass(frozen=True)
class Match:
    """A training row and one row of a benchmark that it overlaps with.

    Attributes:
        similarity: 1 for an exact match, else the Jaccard similarity.
        text: what they share, as the training row has it; for near-duplicates the training row's text.
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
        exact: training rows with an exact match that counts.
        test_rows: benchmark rows that such a match concerns.
        near: training rows without an exact match that have a near-duplicate.
        set_aside: training rows whose match is short or a template.
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
    """What the training set shares with the benchmark sets.

    Attributes:
        cells: those with any count, in the order of the sets.
        exact: for each training row and key one match with each benchmark dataset.
        near: likewise, the most similar one; most similar first.
        repeated: questions that were set aside, see `set_questions_aside`.
    """

    train_rows: int
    threshold: float
    cells: list[Cell] = field(default_factory=list)
    exact: list[Match] = field(default_factory=list)
    near: list[Match] = field(default_factory=list)
    repeated: list[Match] = field(default_factory=list)

    def set_questions_aside(self, train: Iterable[EventSample]) -> None:
        """Take what only asks the same free question of another context out of `exact`: normal within one dataset.

        Customers ask the same of many orders; what makes a leak is the context, or the row itself. Options or a
        hypothesis that come again say more, and stay.
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
        self.exact = [match for match in self.exact if match not in asked]
        counts = Counter((match.train_dataset, match.test_set, match.test_dataset) for match in asked)
        for cell in self.cells:
            moved = counts[cell.train_dataset, cell.test_set, cell.test_dataset] if cell.key == "question" else 0
            cell.exact, cell.set_aside = cell.exact - moved, cell.set_aside + moved

    def rows(self, matches: Sequence[Match]) -> int:
        """Training rows among the matches, each once."""
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


def find_overlap(train: Sequence[EventSample], tests: Sequence[SampleSet], threshold: float = THRESHOLD) -> Overlap:
    """Exact and near overlap of a training set with each benchmark set.

    Args:
        threshold: least Jaccard similarity of a near-duplicate.
    """
    rows = [_Row(sample) for sample in train]
    result = Overlap(len(rows), threshold)
    for test in tests:
        _compare(rows, test, result)
    result.near.sort(key=lambda match: -match.similarity)
    return result


def exclude_overlap(
    samples: Sequence[EventSample], *benchmarks: Sequence[EventSample], threshold: float | None = None
) -> tuple[list[EventSample], list[EventSample]]:
    """The samples without an exact overlap that counts with any benchmark set, and the others; both in their order.

    With a threshold the others hold near-duplicates of at least that similarity too.

    Templates are here those of the benchmark alone: a question that all samples together ask of many contexts may
    be asked of one in the part that is drawn from them, and `find_overlap` must find nothing in any part.
    """
    rows = [_Row(sample) for sample in samples]
    leaving: set[int] = set()
    for benchmark in benchmarks:
        others = [_Row(sample) for sample in benchmark]
        index = _Index((), others)
        leaving |= {place for place, row in enumerate(rows) if any(counts for _, counts, _ in index.matches(row))}
        if threshold is not None:
            for key in NEAR_KEYS:
                leaving |= {place for place, _, _ in _near(key, rows, others, index, threshold)}
    kept = [row.sample for place, row in enumerate(rows) if place not in leaving]
    return kept, [rows[place].sample for place in sorted(leaving)]


def _pair(match: Match) -> tuple[str, str, str]:
    return match.train_dataset, match.train_id, match.test_dataset


class _Row:
    """A sample with its keys."""

    def __init__(self, sample: EventSample) -> None:
        self.sample = sample
        self.context_words: Words = _words(sample.context)
        self.question_words: Words = _words(sample.question, *sorted(sample.options))
        self.context = "".join(self.context_words)
        # A list of its options keeps ("a", "bc") and ("ab", "c") apart.
        self.question = ("".join(_words(sample.question)), *sorted("".join(_words(o)) for o in sample.options))

    def ids(self) -> Iterator[tuple[Any, ...]]:
        """What identifies the sample or the raw row that it was made from."""
        sample, meta = self.sample, self.sample.meta
        yield ("sample", sample.dataset, sample.split, sample.id)
        source = str(meta.get("source_dataset", sample.dataset))
        for place in ("line", "item"):
            if "source" in meta and place in meta:
                yield ("row", source, str(meta["source"]), place, str(meta[place]))
        for name in _NATIVE_IDS:
            if name in meta:
                yield (name, source, str(meta[name]))

    def words(self, key: Key) -> Words:
        return self.context_words if key == "context" else self.question_words

    def text(self, key: Key) -> str:
        sample = self.sample
        if key == "context":
            return sample.context
        return " | ".join([sample.question, *sample.options]) if key == "question" else sample.id


class _Index:
    """Finds the exact matches of a training row among benchmark rows."""

    def __init__(self, train: Iterable[_Row], test: Sequence[_Row]) -> None:
        self.templates = _templates(train) | _templates(test)
        self.by_id: dict[Any, list[_Row]] = defaultdict(list)
        self.by_context: dict[str, list[_Row]] = defaultdict(list)
        self.by_question: dict[Any, list[_Row]] = defaultdict(list)
        for row in test:
            for value in row.ids():
                self.by_id[value].append(row)
            self.by_context[row.context].append(row)
            self.by_question[row.question].append(row)

    def matches(self, row: _Row) -> Iterator[tuple[Key, bool, _Row]]:
        """Each match of the row: by which key, whether it counts, with what."""
        for value in row.ids():
            for other in self.by_id.get(value, ()):
                yield "id", True, other
        if row.context:
            telling = len(row.context_words) >= LEAST_WORDS
            for other in self.by_context.get(row.context, ()):
                yield "context", telling or other.question == row.question, other
        telling = self.is_telling(row)
        for other in self.by_question.get(row.question, ()):
            yield "question", telling or other.context == row.context, other

    def is_telling(self, row: _Row) -> bool:
        """Whether the question is long enough and no template."""
        return len(row.question_words) >= LEAST_WORDS and row.question not in self.templates


def _templates(rows: Iterable[_Row]) -> set[tuple[str, ...]]:
    contexts: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        contexts[row.question].add(row.context)
    return {question for question, asked_of in contexts.items() if len(asked_of) >= TEMPLATE_CONTEXTS}


def _words(*texts: str) -> Words:
    # Interned: a set of samples has a hundred times more words than different ones.
    return tuple(map(sys.intern, words(" ".join(texts))))


_CellKey = tuple[str, str, Key]  # training dataset, benchmark dataset, key


def _compare(train: Sequence[_Row], test: SampleSet, result: Overlap) -> None:
    others = [_Row(sample) for sample in test.samples]
    index = _Index(train, others)
    exact, near, set_aside = Counter[_CellKey](), Counter[_CellKey](), Counter[_CellKey]()
    concerned: dict[_CellKey, set[str]] = defaultdict(set)
    matched: set[tuple[Key, int, str]] = set()
    for place, row in enumerate(train):
        aside: set[_CellKey] = set()
        for key, counts, other in index.matches(row):
            cell = (row.sample.dataset, other.sample.dataset, key)
            if not counts:
                aside.add(cell)
                continue
            concerned[cell].add(other.sample.id)
            if (key, place, other.sample.dataset) not in matched:
                matched.add((key, place, other.sample.dataset))
                exact[cell] += 1
                result.exact.append(_match(key, row, test.name, other, 1.0))
        set_aside.update(cell for cell in aside if (cell[2], place, cell[1]) not in matched)
    for key in NEAR_KEYS:
        for place, other, similarity in _near(key, train, others, index, result.threshold):
            row = train[place]
            if (key, place, other.sample.dataset) not in matched:
                near[row.sample.dataset, other.sample.dataset, key] += 1
                result.near.append(_match(key, row, test.name, other, similarity))
    for trained in dict.fromkeys(row.sample.dataset for row in train):
        for tested in dict.fromkeys(row.sample.dataset for row in others):
            for key in KEYS:
                cell = (trained, tested, key)
                counted = Cell(
                    trained, test.name, tested, key, exact[cell], len(concerned[cell]), near[cell], set_aside[cell]
                )
                if counted.exact or counted.near or counted.set_aside:
                    result.cells.append(counted)


def _near(
    key: Key, train: Sequence[_Row], test: Sequence[_Row], index: _Index, threshold: float
) -> Iterator[tuple[int, _Row, float]]:
    """For each training row and benchmark dataset the most similar row; texts that many rows share count once."""
    ours, theirs = _by_text(key, train, index), _by_text(key, test, index)
    left, right = list(ours), list(theirs)
    best: dict[tuple[int, str], tuple[float, int]] = {}
    for pair in near_pairs(left, right, threshold):
        for other in {test[place].sample.dataset: place for place in reversed(theirs[right[pair.right]])}.items():
            dataset, found = other
            for place in ours[left[pair.left]]:
                if pair.similarity > best.get((place, dataset), (0.0, 0))[0]:
                    best[place, dataset] = (pair.similarity, found)
    for (place, _), (similarity, found) in sorted(best.items()):
        yield place, test[found], similarity


def _by_text(key: Key, rows: Sequence[_Row], index: _Index) -> dict[Words, list[int]]:
    places: dict[Words, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if len(row.words(key)) >= LEAST_WORDS and (key == "context" or index.is_telling(row)):
            places[row.words(key)].append(place)
    return places


def _match(key: Key, row: _Row, test_set: str, other: _Row, similarity: float) -> Match:
    return Match(
        key,
        row.sample.dataset,
        row.sample.id,
        test_set,
        other.sample.dataset,
        other.sample.id,
        round(similarity, 4),
        row.text(key),
    )

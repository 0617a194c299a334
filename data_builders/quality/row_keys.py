"""Keys by which a training row and a benchmark row match, see `contamination.py`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from d2e_sft.data.sample import EventSample
from data_builders.quality.near_duplicates import Words
from data_builders.text.stems import words

Key = Literal["id", "context", "question"]
LEAST_WORDS = 5
TEMPLATE_CONTEXTS = 3
# Publishers' ids of rows, in `meta`; they are valid for all files of a dataset.
_NATIVE_IDS = ("idx", "story_id")


class KeyedRow:
    """A sample with its keys."""

    def __init__(self, sample: EventSample) -> None:
        self.sample = sample
        self.context_words: Words = _words(sample.context)
        self.question_words: Words = _words(sample.question, *sorted(sample.options))
        self.context = "".join(self.context_words)
        # Options are kept separate, so that ("a", "bc") and ("ab", "c") differ.
        self.question = ("".join(_words(sample.question)), *sorted("".join(_words(o)) for o in sample.options))

    def ids(self) -> Iterator[tuple[Any, ...]]:
        """Yield what identifies the sample, or the raw row that it was made from."""
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


class MatchIndex:
    """Finds the exact matches of a training row among benchmark rows."""

    def __init__(self, train: Iterable[KeyedRow], test: Sequence[KeyedRow]) -> None:
        self.templates = _templates(train) | _templates(test)
        self.by_id: dict[Any, list[KeyedRow]] = defaultdict(list)
        self.by_context: dict[str, list[KeyedRow]] = defaultdict(list)
        self.by_question: dict[Any, list[KeyedRow]] = defaultdict(list)
        for row in test:
            for value in row.ids():
                self.by_id[value].append(row)
            self.by_context[row.context].append(row)
            self.by_question[row.question].append(row)

    def matches(self, row: KeyedRow) -> Iterator[tuple[Key, bool, KeyedRow]]:
        """Yield (key, whether it counts, benchmark row) for each match of the row."""
        for value in row.ids():
            for other in self.by_id.get(value, ()):
                yield "id", True, other
        if row.context:
            is_long = len(row.context_words) >= LEAST_WORDS
            for other in self.by_context.get(row.context, ()):
                yield "context", is_long or other.question == row.question, other
        is_specific = self.is_specific(row)
        for other in self.by_question.get(row.question, ()):
            yield "question", is_specific or other.context == row.context, other

    def is_specific(self, row: KeyedRow) -> bool:
        """Return whether the question is long enough and not a template."""
        return len(row.question_words) >= LEAST_WORDS and row.question not in self.templates


def _templates(rows: Iterable[KeyedRow]) -> set[tuple[str, ...]]:
    contexts: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        contexts[row.question].add(row.context)
    return {question for question, asked_of in contexts.items() if len(asked_of) >= TEMPLATE_CONTEXTS}


def _words(*texts: str) -> Words:
    # Interned, since words repeat a hundred times in a set of samples.
    return tuple(map(sys.intern, words(" ".join(texts))))

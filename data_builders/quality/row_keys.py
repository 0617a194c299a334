"""Keys by which a training row and a benchmark row match, see `contamination.py`."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Literal

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import words
from data_builders.quality.near_duplicates import Words

Key = Literal["id", "context", "question"]
LEAST_WORDS = 5
TEMPLATE_CONTEXTS = 3
# Publishers' ids of rows, in `meta`; they are valid for all files of a dataset.
_NATIVE_IDS = ("idx", "story_id")


class KeyedRow:
    """A sample with its keys.

    Attributes:
        words: Words of the context, and of the question with its options.
        context, question: The texts without letter case, blanks and punctuation.
        keys: A row with an equal key matches.
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

    def _ids(self) -> Iterator[Hashable]:
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


class MatchIndex:
    """Finds the exact matches of a training row among benchmark rows."""

    def __init__(self, train: Iterable[KeyedRow], test: Sequence[KeyedRow]) -> None:
        self.templates = _templates(train) | _templates(test)
        self.rows: dict[tuple[Key, Hashable], list[KeyedRow]] = defaultdict(list)
        for row in test:
            for key in row.keys:
                self.rows[key].append(row)

    def matches(self, row: KeyedRow) -> Iterator[tuple[Key, bool, KeyedRow]]:
        """Yield (key, whether it counts, benchmark row) for each match of the row."""
        is_long, is_specific = len(row.words["context"]) >= LEAST_WORDS, self.is_specific(row)
        for key, value in row.keys:
            counts = {"id": True, "context": is_long, "question": is_specific}[key]
            for other in self.rows.get((key, value), ()):
                yield key, counts or (other.context == row.context and other.question == row.question), other

    def is_specific(self, row: KeyedRow) -> bool:
        """Return whether the question is long enough and not a template."""
        return len(row.words["question"]) >= LEAST_WORDS and row.question not in self.templates


def _templates(rows: Iterable[KeyedRow]) -> set[tuple[str, ...]]:
    contexts: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        contexts[row.question].add(row.context)
    return {question for question, asked_of in contexts.items() if len(asked_of) >= TEMPLATE_CONTEXTS}


def _words(*texts: str) -> Words:
    # Interned, since words repeat a hundred times in a set of samples.
    return tuple(map(sys.intern, words(" ".join(texts))))

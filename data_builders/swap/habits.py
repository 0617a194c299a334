"""The habits that training rows teach: the answer that most of them give to a question, whatever its context."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import ENOUGH_ROWS, EventSample, Subset
from d2e_sft.util.answers import asked_for, contains, exact_match, normalise
from data_builders.swap.kinds import without_names

_Question = tuple[str, ...]


class Habits:
    """The usual answers to the questions of a dataset's training rows; a swapped row counts with its first answer."""

    def __init__(self, rows: Iterable[EventSample]) -> None:
        """Count the answers of rows with one answer each; labels of nli and sets of options are left out."""
        self._counts: defaultdict[_Question, Counter[str]] = defaultdict(Counter)
        self._forms: dict[str, list[str]] = {}
        for row in rows:
            if row.format in ("nli", "mcq"):
                continue
            swapped = row.meta.get(SWAPPED)
            answers = [swapped["from"]] if swapped else row.answers
            key = normalise(answers[0])
            self._forms.setdefault(key, answers)
            for question in _questions(row):
                self._counts[question][key] += 1

    def of(self, row: EventSample) -> list[str]:
        """Return the usual answer to a row's question, in its accepted forms; empty if there is no firm one.

        It is the answer of more than half of the training rows with the same question. If these are fewer than 20,
        rows count whose question differs only in names and numbers; if these are too few, rows that ask for the same.
        It does not count if a smaller group has another answer more often, or if it is no option of the row.
        """
        smaller = list[Counter[str]]()
        for counts in (self._counts.get(question, Counter[str]()) for question in _questions(row)):
            if counts.total() < ENOUGH_ROWS:
                smaller.append(counts)
                continue
            [(key, count)] = counts.most_common(1)
            if 2 * count <= counts.total() or any(one[key] < max(one.values(), default=0) for one in smaller):
                break
            return [form for form in self._forms[key] if not row.options or form in row.options]
        return []


def subset_by(habit: Sequence[str], row: EventSample) -> Subset:
    """Return the subset of a row by a habit; `unknown` for free text if one of habit and answer is in the other."""
    if any(exact_match(form, row.answers) for form in habit):
        return "aligned"
    pairs = [] if row.candidates else [(form, answer) for form in habit for answer in row.answers]
    return "unknown" if any(contains(one, other) or contains(other, one) for one, other in pairs) else "conflict"


def _questions(row: EventSample) -> list[_Question]:
    """The row's question as it is, without names and numbers, and what it asks for."""
    asked = (row.format, asked_for(row.question))
    return [(row.format, "", normalise(row.question)), (*asked, without_names(row.question)), asked]

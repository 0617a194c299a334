"""What is known of data before any training: can its answers be guessed, found and revised; and what follows from it.

The recommendation is the first rule of `advice.yaml` that fits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.data.built import SWAPPED, taggers
from d2e_sft.data.sample import ENOUGH_ROWS, FORMATS, EventSample
from d2e_sft.util.answers import asked_for
from data_builders.dataset.sample_sets import describe_refinement
from data_builders.quality.context_free import ContextFree, question_alone
from data_builders.quality.stats import Lengths
from data_builders.sources.reading import has_answer
from data_builders.swap.swap import Swaps, swap_samples

_ADVICE = Path(__file__).with_name("advice.yaml")
_TAGGED = ("aligned", "conflict", "unknown")


@dataclass(frozen=True)
class Advice:
    """The recommended method, the reason, its commands, and further notes."""

    name: str
    reason: str
    commands: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Group:
    """The training rows of one dataset and format, and what is known of them.

    Attributes:
        alone: What a classifier of the question alone gets right.
        kinds: What questions ask for → the same of its rows, if there are 20 or more; empty for nli and a single kind.
        habits: The rows that a model answered without the context; None if no model did.
        swaps: How many rows can be swapped, and why others cannot.
    """

    dataset: str
    format: str
    samples: Sequence[EventSample]
    alone: ContextFree
    kinds: Mapping[str, ContextFree]
    habits: Sequence[EventSample] | None
    swaps: Swaps
    refinement: Mapping[str, Any]

    @property
    def name(self) -> tuple[str, str]:
        return self.dataset, self.format

    @property
    def rows(self) -> int:
        return len(self.samples)

    @property
    def found(self) -> int:
        """Rows whose context has an accepted answer."""
        return sum(map(has_answer, self.samples))

    @property
    def refined(self) -> int:
        """Rows with a refined context."""
        return sum(sample.refined_context is not None for sample in self.samples)

    @property
    def swapped(self) -> int:
        """Rows that are swapped already."""
        return sum(map(is_swapped, self.samples))

    @property
    def differing(self) -> int:
        """Rows whose refined context differs from the context."""
        return self.refined - (self.refinement["rows_refined_unchanged"] or 0)

    def guessed_of(self, kind: str) -> float:
        """The share of right guesses of a kind of question, by the classifier or the most frequent answer."""
        alone = self.kinds[kind]
        common = alone.majority_share if self.format in ("qa", "chat") else 0.0  # of options, it is that of chance
        return max(common, alone.accuracy or 0.0)

    @cached_property
    def by_subset(self) -> dict[str, int]:
        """The rows of each tag, and those that the model answers right, sure or not."""
        counts = Counter(str(sample.subset) for sample in self.habits or ())
        right = sum(bool(one.habit) and set(one.habit) <= set(one.answers) for one in self.habits or ())
        return {name: counts[name] for name in _TAGGED} | {"right": right}


@dataclass(frozen=True)
class Diagnosis:
    """All groups, prompt lengths by view, and the models whose habits are shown, with their numbers of rows.

    `swapped_tests` is the share of test rows that are swapped, None without test rows.
    """

    data: str
    groups: list[Group]
    unit: str
    lengths: Mapping[tuple[str, str], Lengths]
    habits_of: Mapping[str, int] = field(default_factory=dict)
    swapped_tests: float | None = 0.0

    @cached_property
    def measures(self) -> dict[str, float]:
        """What the rules of `advice.yaml` are about, over all groups; unknown measures are left out."""
        rows = sum(group.rows for group in self.groups)
        texts = [group for group in self.groups if group.format != "nli"]
        asked = sum(len(group.habits or ()) for group in self.groups)
        refined = sum(group.refined for group in self.groups)
        tested = [group for group in self.groups if group.alone.accuracy is not None]

        def share(count: float, of: int) -> float | None:
            return count / of if of else None

        guesses = [
            share(sum((group.alone.accuracy or 0) * group.rows for group in tested), sum(one.rows for one in tested)),
            share(sum(group.by_subset["right"] for group in self.groups), asked),
        ]
        found = {
            "rows": float(rows),
            "with_context": share(sum(bool(s.context.strip()) for group in self.groups for s in group.samples), rows),
            "in_context": share(sum(group.found for group in texts), sum(group.rows for group in texts)),
            "labels": share(rows - sum(group.rows for group in texts), rows),
            "guessed": max((guess for guess in guesses if guess is not None), default=None),
            "firm_conflict": share(sum(group.by_subset["conflict"] for group in self.groups), asked),
            "swapped": share(sum(group.swapped for group in self.groups), rows),
            "swapped_tests": self.swapped_tests,
            "revisable": share(sum(group.swaps.swapped for group in self.groups), rows),
            "refined_differ": share(sum(group.differing for group in self.groups), refined),
        }
        if (kinds := self._kinds) or found["guessed"] is not None:
            found["guessed_most"] = max([found["guessed"] or 0.0, *kinds.values()])
        return {name: value for name, value in found.items() if value is not None}

    @property
    def _kinds(self) -> dict[str, float]:
        """Questions in words → the share that is guessed, for kinds of question with enough rows."""
        return {
            f"the {alone.n:,} questions of {group.dataset} that ask for {kind!r}": group.guessed_of(kind)
            for group in self.groups
            for kind, alone in group.kinds.items()
        }

    def advice(self, places: Mapping[str, str]) -> Advice:
        """Return what the rules recommend; `places` fill the commands: data, built, train, build, recipe."""
        rules = yaml.safe_load(_ADVICE.read_text(encoding="utf-8"))
        rule = next(rule for rule in rules["methods"] if self._holds(rule["when"]))
        most = self.measures.get("guessed_most")
        kind = next((name for name, share in self._kinds.items() if share == most), "the questions")
        if most == self.measures.get("guessed"):
            kind = "the questions"
        notes = [one["note"].format(**self.measures, kind=kind) for one in rules["notes"] if self._holds(one["when"])]
        commands = [command.format(**places) for command in rule["commands"]]
        return Advice(rule["name"], rule["reason"].format(**self.measures, kind=kind), commands, notes)

    def to_json(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "measures": self.measures,
            "habits_of": dict(self.habits_of),
            "groups": [
                {
                    "dataset": group.dataset,
                    "format": group.format,
                    "rows": group.rows,
                    "question_alone": asdict(group.alone),
                    "by_kind_of_question": {kind: asdict(alone) for kind, alone in group.kinds.items()},
                    "closed_book": None if group.habits is None else {"rows": len(group.habits), **group.by_subset},
                    "answers_in_context": group.found,
                    "swap": group.swaps.describe(),
                    **group.refinement,
                }
                for group in self.groups
            ],
            "lengths": [
                {"dataset": dataset, "view": view, "unit": self.unit, **asdict(lengths)}
                for (dataset, view), lengths in self.lengths.items()
            ],
        }

    def _holds(self, conditions: Mapping[str, Sequence[float]]) -> bool:
        values = self.measures
        return all(name in values and low <= values[name] < high for name, (low, high) in conditions.items())


def diagnose(
    samples: Sequence[EventSample], habits: Sequence[EventSample], seed: int = 0, *, is_own: bool = False
) -> list[Group]:
    """Describe rows by dataset and format.

    Args:
        samples: training rows.
        habits: rows that a model has tagged (`d2e data tag`); some of the samples, or none.
        seed: of the folds and swaps.
        is_own: own data, whose swaps have more to choose from.
    """
    groups = []
    for dataset in dict.fromkeys(sample.dataset for sample in samples):
        for fmt in FORMATS:
            own = [one for one in samples if (one.dataset, one.format) == (dataset, fmt)]
            if not own:
                continue
            asked = [one for one in habits if (one.dataset, one.format) == (dataset, fmt)]
            chance = random.Random(f"{seed}/{dataset}/diagnosis")
            swaps = swap_samples(own, 1.0, chance, more=own if is_own else None)[1]
            alone, refinement = question_alone(own, seed), describe_refinement(own)
            groups.append(Group(dataset, fmt, own, alone, _by_kind(own, seed), asked or None, swaps, refinement))
    return groups


def _by_kind(samples: Sequence[EventSample], seed: int) -> dict[str, ContextFree]:
    parts: dict[str, list[EventSample]] = {}
    for sample in samples if samples[0].format != "nli" else ():
        parts.setdefault(asked_for(sample.question), []).append(sample)
    enough = {kind: own for kind, own in parts.items() if len(own) >= ENOUGH_ROWS}
    return {kind: question_alone(own, seed) for kind, own in enough.items()} if len(parts) > 1 else {}


def is_swapped(sample: EventSample) -> bool:
    """Return whether another entity has become the sample's answer (`d2e data build --swap`)."""
    return SWAPPED in sample.meta


def tagged_rows(samples: Sequence[EventSample]) -> list[EventSample]:
    """Return the samples that a model has tagged."""
    return [sample for sample in samples if taggers([sample])]

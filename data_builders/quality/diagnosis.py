"""Tell before any training whether answers can be guessed, found and revised, and recommend what follows from it.

The recommendation is the first rule of `advice.yaml` that fits.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.data.built import SWAPPED, taggers
from d2e_sft.data.sample import ENOUGH_ROWS, FORMATS, NLI_LABELS, EventSample
from d2e_sft.util.answers import asked_for
from d2e_sft.util.table import NONE, Table, percent
from data_builders.dataset import describe_refinement, is_answerable
from data_builders.quality.context_free import ContextFree, hypothesis_alone, question_alone
from data_builders.sources.reading import has_answer
from data_builders.swap.revise import Refusal
from data_builders.swap.swap import Swaps, swap_samples

_ADVICE = Path(__file__).with_name("advice.yaml")
_MOST = 0.5  # as in advice.yaml
_PART = 0.2  # share of the rows: the least that a kind of question needs to decide about the whole
_TAGGED = ("aligned", "conflict", "unknown")
_KEYS = ["dataset", "format"]
_GUESSED = (
    "Percent of the answers. Most frequent: the most frequent label or answer, or chance among options. Question "
    "only: a classifier of the question, on rows that it was not trained on; of free text, the answer of the "
    "most similar questions. What 20 questions or more ask for (where, the club of `which club`) has a line of its "
    "own. Refusals are left out, except in the line `refuses or not`. "
)
_CONTEXTS = (
    "Refusals: rows that say that their context does not answer. In context: percent of the other rows whose context "
    "has an accepted answer. Refined: rows with a refined context, "
    "percent of these that differ from the context, percent of the words kept. Where a refined context equals the "
    "context, the KL term of D²E teaches nothing."
)
_REVISED = "Rows whose answer and context can get another entity (d2e data build --swap), and why others cannot."
_RULES = "The rules are in data_builders/quality/advice.yaml; docs/how-to/choosing.md has the measured effects."


@dataclass(frozen=True)
class Advice:
    """The recommended method, the reason, its commands, and further notes."""

    name: str
    reason: str
    commands: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Guessed:
    """What share of some rows is guessed without the context; `questions` says in words which."""

    questions: str
    rows: int
    share: float

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The exact interval (Clopper and Pearson), 95 %, as if rows were independent."""
        from scipy.stats import binomtest

        interval = binomtest(round(self.share * self.rows), self.rows).proportion_ci(0.95, "exact")
        return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Group:
    """The training rows of one dataset and format, and what is known of them.

    Attributes:
        with_context, answered, refined, swapped: Rows with a context, an accepted answer in it, a refined context, and
            another entity already.
        refusals: Rows whose answer is a refusal, since the context does not have one.
        refusing: Share of rows of which the question tells whether they refuse; None without rows of both kinds.
        alone: Share of rows that a classifier of the question gets right.
        kinds: What questions ask for → the same of its rows, if there are 20 or more; empty for nli and a single kind.
        asked: Rows that a model answered without the context, and in `by_subset` those of each tag, and those that it
            answers right, sure or not.
    """

    dataset: str
    format: str
    rows: int
    with_context: int
    answered: int
    refusals: int
    refined: int
    swapped: int
    refusing: ContextFree | None
    alone: ContextFree
    kinds: Mapping[str, ContextFree]
    asked: int
    by_subset: Mapping[str, int]
    swaps: Swaps
    refinement: Mapping[str, Any]

    @property
    def answerable(self) -> int:
        return self.rows - self.refusals

    @property
    def differing(self) -> int:
        """Rows whose refined context differs from the context."""
        return self.refined - (self.refinement["rows_refined_unchanged"] or 0)

    def guessed_of(self, kind: str) -> float:
        """The share of right guesses of a kind of question, by the classifier or the most frequent answer."""
        alone = self.kinds[kind]
        common = alone.majority_share if self.format in ("qa", "chat") else 0.0  # of options, it is that of chance
        return max(common, alone.accuracy or 0.0)


@dataclass(frozen=True)
class Diagnosis:
    """All groups, prompt lengths by dataset and view (as `compute_stats` has them), and the tagging models' rows.

    `swapped_tests` is the share of test rows that are swapped, None without test rows.
    """

    data: str
    groups: list[Group]
    unit: str
    lengths: Mapping[tuple[str, str], Mapping[str, Any]]
    habits_of: Mapping[str, int] = field(default_factory=dict)
    swapped_tests: float | None = 0.0

    @cached_property
    def measures(self) -> dict[str, float]:
        """What the rules of `advice.yaml` are about, over all groups; unknown measures are left out."""

        def total(values: Iterable[float]) -> float:
            return sum(values)

        def share(count: float, of: float) -> float | None:
            return count / of if of else None

        groups, rows = self.groups, total(group.rows for group in self.groups)
        texts = [group for group in groups if group.format != "nli"]
        asked, refined = total(group.asked for group in groups), total(group.refined for group in groups)
        measures = {
            "rows": float(rows),
            "with_context": share(total(group.with_context for group in groups), rows),
            "in_context": share(
                total(group.answered for group in texts), total(group.rows - group.refusals for group in texts)
            ),
            "refusals": share(total(group.refusals for group in groups), rows),
            **self._refusals(),
            "labels": share(rows - total(group.rows for group in texts), rows),
            **self._guesses(),
            "firm_conflict": share(total(group.by_subset["conflict"] for group in groups), asked),
            "swapped": share(total(group.swapped for group in groups), rows),
            "swapped_tests": self.swapped_tests,
            "revisable": share(total(group.swaps.swapped for group in groups), rows),
            "refined_differ": share(total(group.differing for group in groups), refined),
        }
        return {name: value for name, value in measures.items() if value is not None}

    @cached_property
    def _overall(self) -> Guessed | None:
        """The accuracy over all rows, by the better of classifier and model."""
        tested = [group for group in self.groups if group.alone.accuracy is not None]
        by_classifier = (sum((group.alone.accuracy or 0) * group.answerable for group in tested), tested, "answerable")
        by_model = (sum(group.by_subset["right"] for group in self.groups), self.groups, "asked")
        results = []
        for right, groups, name in (by_classifier, by_model):
            if count := sum(getattr(group, name) for group in groups):
                results.append(Guessed("the questions", count, right / count))
        return max(results, key=lambda guessed: guessed.share, default=None)

    @cached_property
    def most_guessed(self) -> Guessed | None:
        """The questions that decide: all if most are surely guessed, otherwise the kind that is guessed most surely.

        A kind with less than a fifth of the rows decides nothing about the whole.
        """
        if self._overall is not None and self._overall.interval[0] >= _MOST:
            return self._overall
        rows = sum(group.rows for group in self.groups)
        kinds = (
            Guessed(
                f"the {alone.n:,} questions of {group.dataset} that ask for {kind!r}", alone.n, group.guessed_of(kind)
            )
            for group in self.groups
            for kind, alone in group.kinds.items()
            if alone.n >= _PART * rows
        )
        candidates = [guessed for guessed in (self._overall, *kinds) if guessed is not None]
        return max(candidates, key=lambda guessed: guessed.interval[0], default=None)

    def _guesses(self) -> dict[str, float | None]:
        overall, most = self._overall, self.most_guessed
        if most is None:
            return {}
        low, high = most.interval
        return {
            "guessed": None if overall is None else overall.share,
            "guessed_most": most.share,
            "guessed_low": low,
            "guessed_high": high,
            "guessed_rows": float(most.rows),
        }

    def _refusals(self) -> dict[str, float]:
        """How well "refuses or not" is guessed in the group where it most surely exceeds the more frequent kind."""
        found = list[dict[str, float]]()
        for group in self.groups:
            if (one := group.refusing) is not None and one.accuracy is not None:
                low, high = Guessed("", one.n, one.accuracy).interval
                gain = low - one.majority_share
                values = {"guessed": one.accuracy, "low": low, "high": high, "rows": float(one.n), "gain": gain}
                found.append(values | {"majority": one.majority_share})
        most = max(found, key=lambda values: values["gain"], default={})
        return {f"refusals_{name}": value for name, value in most.items()}

    def advice(self, places: Mapping[str, str]) -> Advice:
        """Return what the rules recommend; `places` fill the commands: data, built, train, build, recipe."""
        values = self.measures

        def holds(rule: Mapping[str, Any]) -> bool:
            return all(name in values and low <= values[name] < high for name, (low, high) in rule["when"].items())

        kind = "the questions" if self.most_guessed is None else self.most_guessed.questions
        rules = yaml.safe_load(_ADVICE.read_text(encoding="utf-8"))
        rule = next(filter(holds, rules["methods"]))
        notes = [note["note"].format(**values, kind=kind) for note in filter(holds, rules["notes"])]
        commands = [command.format(**places) for command in rule["commands"]]
        return Advice(rule["name"], rule["reason"].format(**values, kind=kind), commands, notes)

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
                    "closed_book": {"rows": group.asked, **group.by_subset} if group.asked else None,
                    "answers_in_context": group.answered,
                    **({"refusals": group.refusals} if group.refusals else {}),
                    **({"refuses_or_not": asdict(group.refusing)} if group.refusing else {}),
                    "swap": group.swaps.describe(),
                    **group.refinement,
                }
                for group in self.groups
            ],
            "lengths": [
                {"dataset": dataset, "view": view, "unit": self.unit, **lengths}
                for (dataset, view), lengths in self.lengths.items()
            ],
        }

    def tables(self) -> dict[str, Table]:
        """Return the tables by their titles; those without rows are left out."""
        guessed, contexts, revised = list[list[Any]](), list[list[Any]](), list[list[Any]]()
        for group in self.groups:
            name, n = [group.dataset, group.format], group.rows
            shares = [percent(group.by_subset[subset] / group.asked) for subset in ("right", *_TAGGED) if group.asked]
            asked = [group.asked, *shares] if shares else [None] * 5
            guessed.append([*name, group.alone.n, percent(group.alone.majority_share), _accuracy(group.alone), *asked])
            refusing = {"refuses or not": group.refusing} if group.refusing else {}
            for kind, alone in {**group.kinds, **refusing}.items():
                cells = [alone.n, percent(alone.majority_share), _accuracy(alone)]
                guessed.append([group.dataset, f"{group.format}, {kind}", *cells, *[None] * 5])
            in_context = (
                NONE if group.format == "nli" or not group.answerable else percent(group.answered / group.answerable)
            )
            kept = percent(group.refinement["refined_share_of_words"]) if group.refined else None
            differ = percent(group.differing / group.refined) if group.refined else None
            contexts.append([*name, n, group.refusals, in_context, group.refined, differ, kept])
            revised.append([*name, "can be swapped", group.swaps.swapped, percent(group.swaps.swapped / n)])
            for reason in sorted(Refusal, key=lambda reason: -group.swaps.refused[reason]):
                if count := group.swaps.refused[reason]:
                    revised.append([*name, f"no: {reason.value}", count, percent(count / n)])
        lengths = [
            [*name, figures["n"], *(f"{figures[key]:,.0f}" for key in ("median", "p95", "longest"))]
            for name, figures in self.lengths.items()
        ]
        columns = [*_KEYS, "rows", "most frequent", "question only"]
        note = "No model was asked: add --model NAME."
        if models := ", ".join(self.habits_of):
            note = (
                f"Asked: rows that {models} answered without the context. It is right, and it is sure and right "
                "(aligned), sure and wrong (conflict), or not sure (unknown)."
            )
            columns += ["asked", "right", *_TAGGED]
        in_unit = f"In {self.unit}, instruction included. The imagined view leaves the context out."
        parts = {
            "Can answers be guessed without the context?": (columns, guessed, _GUESSED + note),
            "Are answers in their contexts?": (
                [*_KEYS, "rows", "refusals", "in context", "refined", "differ", "words kept"],
                contexts,
                _CONTEXTS,
            ),
            "Can rows be revised?": ([*_KEYS, "", "rows", "percent"], revised, _REVISED),
            "Prompt lengths": (["dataset", "view", "n", "median", "95 %", "longest"], lengths, in_unit),
        }
        return {
            title: Table.of(columns, [line[: len(columns)] for line in lines], caption, keys=2)
            for title, (columns, lines, caption) in parts.items()
            if lines
        }

    def page(self, advice: Advice) -> str:
        from d2e_sft.util.html.pages import PageSection, render_sections

        texts = [advice.reason, *advice.notes]
        first = PageSection(f"Recommended: {advice.name}", texts=texts, commands=advice.commands, notes=[_RULES])
        lead = f"{self.measures['rows']:,.0f} training rows, looked at before any training."
        sections = [PageSection(title, [table]) for title, table in self.tables().items()]
        return render_sections(f"Which method for {self.data}?", lead, [first, *sections])


def _accuracy(alone: ContextFree) -> str:
    if alone.accuracy is None:
        return NONE
    return f"{percent(alone.accuracy)} ± {percent(alone.standard_error)}"


def diagnose(
    samples: Sequence[EventSample], habits: Sequence[EventSample], seed: int = 0, *, is_own: bool = False
) -> list[Group]:
    """Describe training rows by dataset and format.

    Args:
        habits: Those of the samples that a model has tagged (`d2e data tag`); may be empty.
        is_own: Own data, whose swaps have more to choose from.
    """
    groups = []
    for dataset in dict.fromkeys(sample.dataset for sample in samples):
        for fmt in FORMATS:
            rows, tagged = ([sample for sample in part if (sample.dataset, sample.format) == (dataset, fmt)]
                           for part in (samples, habits))  # fmt: skip
            if not rows:
                continue
            subsets = Counter(str(sample.subset) for sample in tagged)
            right = sum(map(_habit_is_right, tagged))
            answerable, chance = list(filter(is_answerable, rows)), random.Random(f"{seed}/{dataset}/diagnosis")
            groups.append(
                Group(
                    dataset,
                    fmt,
                    rows=len(rows),
                    with_context=sum(bool(sample.context.strip()) for sample in rows),
                    answered=sum(map(has_answer, answerable)),
                    refusals=len(rows) - len(answerable),
                    refusing=_refuses_or_not(rows, seed) if 0 < len(answerable) < len(rows) else None,
                    refined=sum(sample.refined_context is not None for sample in rows),
                    swapped=sum(map(is_swapped, rows)),
                    alone=question_alone(answerable or rows, seed),
                    kinds=_by_kind(answerable or rows, seed),
                    asked=len(tagged),
                    by_subset={name: subsets[name] for name in _TAGGED} | {"right": right},
                    swaps=swap_samples(answerable, 1.0, chance, more=rows if is_own else None)[1],
                    refinement=describe_refinement(rows),
                )
            )
    return groups


def _habit_is_right(sample: EventSample) -> bool:
    """Whether a model's habit is an accepted answer; of several right options, it must have all."""
    habit, answers = set(sample.habit), set(sample.answers)
    return habit == answers if sample.format == "mcq" else bool(habit) and habit <= answers


def _refuses_or_not(samples: Sequence[EventSample], seed: int) -> ContextFree:
    """Return how well the question alone tells whether a row refuses."""
    labelled = [row.model_copy(update={"answers": [NLI_LABELS[is_answerable(row)]]}) for row in samples]
    return hypothesis_alone(labelled, seed)


def _by_kind(samples: Sequence[EventSample], seed: int) -> dict[str, ContextFree]:
    parts: dict[str, list[EventSample]] = {}
    for sample in samples if samples[0].format != "nli" else ():
        parts.setdefault(asked_for(sample.question), []).append(sample)
    enough = {kind: rows for kind, rows in parts.items() if len(rows) >= ENOUGH_ROWS}
    return {kind: question_alone(rows, seed) for kind, rows in enough.items()} if len(parts) > 1 else {}


def is_swapped(sample: EventSample) -> bool:
    """Return whether another entity has become the sample's answer (`d2e data build --swap`)."""
    return SWAPPED in sample.meta


def tagged_rows(samples: Sequence[EventSample]) -> list[EventSample]:
    return [sample for sample in samples if taggers([sample])]

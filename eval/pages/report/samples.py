"""Samples on the page: those that it shows in full, the data of its browser, and texts that must not be passed on.

Samples that changed come first. Outcomes take turns (fixed and broken, then both right and both wrong), and so do
groups within an outcome, in the order of the file. The page is therefore reproducible and shows failures as readily
as successes.

Some datasets must not be passed on. The page can leave out their texts and outputs; scores, nli labels and ids stay.

Thousands of samples with every run's answer must fit into one file. Many share a passage, so each text is stored once
and referenced by number; large data is compressed.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.table import Table
from eval.compare.judged import PATTERN_NAMES, RunPatterns
from eval.compare.runs import ScoredRun, presented
from eval.pages.report.facts import Instruction
from eval.score.faithfulness import contains_answer
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import GroupKey, group_of

_T = TypeVar("_T")

OUTCOMES = {  # right in one run, right in another
    (False, True): "fixed",
    (True, False): "broken",
    (True, True): "both right",
    (False, False): "both wrong",
}
BETWEEN_RUNS = {
    (False, True): "fixed by {1}",
    (True, False): "broken by {1}",
    (True, True): "right in {0} and {1}",
    (False, False): "wrong in {0} and {1}",
}
ONE_RUN = {(True, True): "right", (False, False): "wrong"}


@dataclass(frozen=True)
class ShownSample:
    """One sample with every run's prediction, and the outcome that it is an example of."""

    outcome: str
    predictions: tuple[Prediction, ...]

    @property
    def sample(self) -> Prediction:
        return self.predictions[0]


def choose_samples(runs: Sequence[ScoredRun], count: int, *, changed_first: bool = True) -> list[ShownSample]:
    """Choose up to `count` samples in turns of outcomes; `changed_first` takes all that changed before any other."""
    presented_run = runs[presented(runs)]
    outcome_names = ONE_RUN if len(runs) == 1 else BETWEEN_RUNS
    outcomes = {change: name.format(runs[0].label, presented_run.label) for change, name in outcome_names.items()}
    by_outcome: dict[str, dict[GroupKey, list[SampleKey]]] = {name: {} for name in outcomes.values()}
    for key, first in runs[0].predictions.items():
        groups = by_outcome[outcomes[first.right, presented_run.predictions[key].right]]
        groups.setdefault(group_of(first), []).append(key)
    turns = {name: [(name, key) for key in in_turns(list(groups.values()))] for name, groups in by_outcome.items()}
    changed = [name for (before, after), name in outcomes.items() if changed_first and before != after]
    kinds = (changed, [name for name in turns if name not in changed])
    chosen = [pair for names in kinds for pair in in_turns([turns[name] for name in names])][:count]
    return [ShownSample(name, tuple(run.predictions[key] for run in runs)) for name, key in chosen]


def in_turns(lists: Sequence[Sequence[_T]]) -> Iterator[_T]:
    for turn in range(max(map(len, lists), default=0)):
        yield from (items[turn] for items in lists if turn < len(items))


def datasets_of(run: ScoredRun) -> list[str]:
    """Names of the datasets that a run was scored on, in order of appearance."""
    return list(dict.fromkeys(dataset for dataset, _ in run.predictions))


def check_datasets(names: Collection[str], run: ScoredRun) -> None:
    known = datasets_of(run)
    for name in names:
        if name not in known:
            raise UserError(
                f"--no-texts-of {name}: not a dataset of the benchmark, which has {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )


def without_texts(runs: Sequence[ScoredRun], datasets: Collection[str]) -> list[ScoredRun]:
    """The runs without the texts and outputs of these datasets."""

    def redacted(prediction: Prediction) -> Prediction:
        if prediction.dataset not in datasets:
            return prediction
        changes: dict[str, Any] = {"context": "", "question": "", "options": [], "output": ""}
        if prediction.format != "nli":  # its gold, habit and answer are labels
            changes |= {"gold": [], "habit": []}
        if prediction.format != "nli" or not prediction.parsed:
            changes["answer"] = []
        return prediction.model_copy(update=changes)

    return [replace(run, predictions={key: redacted(p) for key, p in run.predictions.items()}) for run in runs]


def shown(text: str, limit: int = 1_500) -> str:
    """The text, cut to `limit` characters: small models may repeat themselves endlessly."""
    text = text.strip()
    if len(text) <= limit:
        return text or "(empty output)"
    return f"{text[:limit]} … ({len(text) - limit:,} more characters)"


COMPRESS_FROM = 1_000_000  # characters; smaller data stays readable and works in older browsers


def change_table(runs: Sequence[ScoredRun]) -> Table | None:
    """How often each outcome occurs between the first run and each other one; None for one run."""
    first, *others = runs
    lines = []
    for run in others:
        counts = Counter(OUTCOMES[first.predictions[key].right, p.right] for key, p in run.predictions.items())
        lines.append([run.label, *(counts[outcome] for outcome in OUTCOMES.values())])
    names = ["fixed (wrong → right)", "broken (right → wrong)", "both right", "both wrong"]
    return Table.of([f"from {first.label} to", *names], lines) if lines else None


def browser_data(
    runs: Sequence[ScoredRun],
    patterns: Mapping[str, RunPatterns],
    instructions: Sequence[Instruction],
    limit: int | None = None,
) -> dict[str, Any]:
    """The data for the browser's script, whose comment explains the lists.

    At most `limit` samples are drawn from outcomes and groups in turns; None means all.
    """
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    tagged = any(sample.subset for sample in runs[0].predictions.values())
    groups: dict[tuple[str, ...], int] = {}
    samples = []
    for key in _in_order(runs, limit):
        sample = runs[0].predictions[key]
        facets = (*group_of(sample), *([sample.subset or "no tag"] if tagged else []))
        group = groups.setdefault(facets, len(groups))
        answers = [_answer(run.predictions[key], key, patterns.get(run.label), number) for run in runs]
        samples.append(
            [
                group,
                sample.id,
                number(sample.context.strip()),
                number(sample.question),
                list(map(number, sample.options)),
                list(map(number, sample.gold)),
                answers,
                *([list(map(number, sample.habit))] if tagged else []),
            ]
        )
    return {
        "runs": [run.label for run in runs],
        "presented": presented(runs),
        "patterns": list(PATTERN_NAMES.values()),
        "instructions": [
            [number(item.text), item.labels, [place for key, place in groups.items() if key[:3] in item.groups]]
            for item in instructions
        ],
        "groups": [list(group) for group in groups],
        "samples": samples,
        "texts": list(texts),
    }


def _in_order(runs: Sequence[ScoredRun], limit: int | None) -> list[SampleKey]:
    """Take groups in turns, so that the first cards of any filter show several datasets."""
    members: dict[tuple[str | None, ...], list[SampleKey]] = {}
    for key, prediction in runs[0].predictions.items():
        members.setdefault((*group_of(prediction), prediction.subset), []).append(key)
    keys = list(in_turns(list(members.values())))
    if limit is None or limit >= len(keys):
        return keys
    chosen = {(item.sample.dataset, item.sample.id) for item in choose_samples(runs, limit, changed_first=False)}
    return [key for key in keys if key in chosen]


def packed(data: Mapping[str, Any]) -> tuple[str, str]:
    """The text and type of a script element: JSON, or gzip in base64 if it is large."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if len(text) < COMPRESS_FROM:
        for character in "<>&\u2028\u2029":  # would end a script element, open a comment or end a line
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text, "application/json"
    # No time in the header: the same runs make the same page.
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode("ascii"), "application/gzip"


def _answer(
    prediction: Prediction, key: SampleKey, patterns: RunPatterns | None, number: Callable[[str], int]
) -> list[Any]:
    """[right, F1 in percent, answers or null, output, pattern or -1, reason or -1, and a note on a wrong answer].

    The note is the sum of 1 if the answer is the habit and 2 if it contains an accepted answer; 0 is left out.
    """
    pattern = reason = -1
    error = None if patterns is None else patterns.errors.get(key)
    if error is not None and patterns is not None:
        pattern = list(PATTERN_NAMES).index(error.pattern)
        # A reason may quote a sample whose texts are left out.
        hidden = not prediction.question or patterns.method == "by rule"
        reason = -1 if hidden else number(shown(error.reason))
    note = 0 if prediction.right else prediction.gives(prediction.habit) + 2 * contains_answer(prediction)
    return [
        int(prediction.right),
        round(100 * prediction.f1, 1),
        [number(shown(answer)) for answer in prediction.answer] if prediction.parsed else None,
        number(shown(prediction.output)) if prediction.question else -1,
        pattern,
        reason,
        *([note] if note else []),
    ]

"""The data of the page's sample browser, and how often answers changed between the runs.

Thousands of samples with every run's answer must fit into one file. Many share a passage, so each text is stored once
and referenced by number; large data is compressed.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from d2e_sft.util.table import Table
from eval.compare.judged import RunPatterns
from eval.compare.runs import ScoredRun, presented
from eval.pages.report.facts import Instruction
from eval.pages.report.patterns import PATTERN_PARTS
from eval.pages.report.samples import OUTCOMES, choose_samples, in_turns, shown
from eval.score.faithfulness import contains_answer
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import group_of

COMPRESS_FROM = 1_000_000  # characters; smaller data stays readable and works in older browsers


def change_table(runs: Sequence[ScoredRun]) -> Table | None:
    """How often each outcome occurs between the first run and each other one; None for one run."""
    first, *others = runs
    lines = []
    for run in others:
        counts = Counter(OUTCOMES[first.predictions[key].right, one.right] for key, one in run.predictions.items())
        lines.append([run.label, *(counts[outcome] for outcome in OUTCOMES.values())])
    names = ["fixed (wrong → right)", "broken (right → wrong)", "both right", "both wrong"]
    return Table.of([f"from {first.label} to", *names], lines) if lines else None


def browser_data(
    runs: Sequence[ScoredRun],
    patterns: Mapping[str, RunPatterns],
    instructions: Sequence[Instruction],
    limit: int | None = None,
) -> dict[str, Any]:
    """The data for the browser's script, whose comment explains the lists; `patterns` are by label of the run.

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
        "patterns": [part.name for part in PATTERN_PARTS],
        "instructions": [
            [number(one.text), one.labels, [place for key, place in groups.items() if key[:3] in one.groups]]
            for one in instructions
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
    chosen = {(one.sample.dataset, one.sample.id) for one in choose_samples(runs, limit, changed_first=False)}
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
        pattern = next(index for index, part in enumerate(PATTERN_PARTS) if part.key == error.pattern.value)
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

"""How far the free answers of several runs keep to their contexts: by words, and by a judge's verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from eval.compare.judged_answers import read_judged
from eval.compare.paired import ComparedRun, changes_to_first, paired_change
from eval.compare.runs import ScoredRun
from eval.score.faithfulness import has_free_answer, word_shares
from eval.score.predictions import SampleKey
from eval.score.statistics import bootstrap_average

WORDS = ("in context", "context recall")
JUDGED = ("supported", "correct")


@dataclass(frozen=True)
class Faithfulness:
    """All runs on one dataset's free answers, or on those of `all` datasets."""

    dataset: str
    n: int
    runs: tuple[ComparedRun, ...]

    def has(self, measures: Sequence[str]) -> bool:
        """Whether some run has one of these measures."""
        return any(name in run.scores for run in self.runs for name in measures)


def compare_faithfulness(runs: Sequence[ScoredRun], *, seed: int = 0) -> tuple[Faithfulness, ...]:
    """Compare free answers to contexts by dataset and, if there are several, over all; empty without such answers."""
    datasets: dict[str, list[SampleKey]] = {}
    for key, prediction in runs[0].predictions.items():
        if has_free_answer(prediction):
            datasets.setdefault(prediction.dataset, []).append(key)
    if len(datasets) > 1:
        datasets["all"] = [key for keys in datasets.values() for key in keys]
    values = [_values(run) for run in runs]
    rows = []
    for dataset, keys in datasets.items():
        chosen = [
            {
                name: [found]
                for name, own in measures.items()
                if (found := {key: own[key] for key in keys if key in own})
            }
            for measures in values
        ]
        scores = [
            {name: bootstrap_average([list(found.values())], seed=seed) for name, [found] in own.items()}
            for own in chosen
        ]
        changes = changes_to_first(chosen, partial(paired_change, seed=seed))
        compared = map(ComparedRun, [run.label for run in runs], scores, changes)
        rows.append(Faithfulness(dataset, len(keys), tuple(compared)))
    return tuple(rows)


def _values(run: ScoredRun) -> dict[str, dict[SampleKey, float]]:
    """Measure → sample → value."""
    judged = read_judged(run) or {}
    values: dict[str, dict[SampleKey, float]] = {name: {} for name in (*WORDS, *JUDGED)}
    for key, prediction in run.predictions.items():
        if has_free_answer(prediction):
            found = dict(zip(WORDS, word_shares(prediction), strict=True))
            if verdict := judged.get(key):
                found |= {"supported": float(verdict.supported), "correct": float(verdict.correct)}
            for name, value in found.items():
                if value is not None:
                    values[name][key] = value
    return values

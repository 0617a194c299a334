"""Several runs side by side: each group's scores, and what each run gains over the first, sample by sample.

Differences are paired: two runs answer the same questions, so the interval of their difference is much
narrower than their separate intervals suggest, and overlapping intervals prove nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from d2e_sft.sample import NLI_LABELS
from eval.intervals import Difference, Interval, paired_difference
from eval.runs import SampleKey, ScoredRun
from eval.scores import ALL, GroupKey, group_of


@dataclass(frozen=True)
class Cell:
    """One run's scores in one group, as fractions; `label_shares` for nli only."""

    exact_match: Interval
    f1: Interval
    parsed: float
    label_shares: dict[str, float] | None


@dataclass(frozen=True)
class Gain:
    """One run's paired differences to the first run in one group, as fractions."""

    exact_match: Difference
    f1: Difference


@dataclass(frozen=True)
class Row:
    """One group, or all samples.

    Attributes:
        cells: one for each run.
        gains: one for each run after the first.
        gold_shares: shares of the labels among the gold answers; nli only.
    """

    dataset: str
    relation: str
    format: str
    n: int
    cells: tuple[Cell, ...]
    gains: tuple[Gain, ...]
    gold_shares: dict[str, float] | None


@dataclass(frozen=True)
class Comparison:
    """Runs on one benchmark; the last row is over all samples."""

    bench: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists, scores as fractions."""
        return asdict(self)


def compare_runs(runs: Sequence[ScoredRun], *, seed: int = 0) -> Comparison:
    """Scores and paired differences of runs that `eval.runs.load_runs` found to fit."""
    groups: dict[GroupKey, list[SampleKey]] = {}
    for sample, prediction in runs[0].predictions.items():
        groups.setdefault(group_of(prediction), []).append(sample)
    rows = [_row(key, samples, runs, seed) for key, samples in groups.items()]
    if len(rows) > 1:  # over one group, `all` would only repeat it
        rows.append(_row(ALL, list(runs[0].predictions), runs, seed))
    return Comparison(runs[0].scores.bench.name, tuple(run.label for run in runs), tuple(rows))


def _row(key: GroupKey, samples: Sequence[SampleKey], runs: Sequence[ScoredRun], seed: int) -> Row:
    dataset, relation, fmt = key
    return Row(
        dataset,
        relation,
        fmt,
        len(samples),
        cells=tuple(_cell(run, key) for run in runs),
        gains=tuple(_gain(runs[0], run, samples, seed) for run in runs[1:]),
        gold_shares=_gold_shares(runs[0], samples) if fmt == "nli" else None,
    )


def _cell(run: ScoredRun, key: GroupKey) -> Cell:
    scores = run.scores.overall if key == ALL else next(group for group in run.scores.groups if group.key == key)
    return Cell(scores.exact_match, scores.f1, scores.parsed, scores.label_shares)


def _gain(first: ScoredRun, other: ScoredRun, samples: Sequence[SampleKey], seed: int) -> Gain:
    before = [first.predictions[sample] for sample in samples]
    after = [other.predictions[sample] for sample in samples]
    return Gain(
        exact_match=paired_difference([p.exact_match for p in before], [p.exact_match for p in after], seed=seed),
        f1=paired_difference([p.f1 for p in before], [p.f1 for p in after], seed=seed),
    )


def _gold_shares(run: ScoredRun, samples: Sequence[SampleKey]) -> dict[str, float]:
    gold = [run.predictions[sample].gold for sample in samples]
    return {label: sum(answers == [label] for answers in gold) / len(gold) for label in NLI_LABELS}

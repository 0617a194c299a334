"""Several runs side by side: each group's scores, and what each run gains over the first, sample by sample.

Differences are paired: two runs answer the same questions, so the interval of their difference is much
narrower than their separate intervals suggest, and overlapping intervals prove nothing. A table tests many rows at
once, so each metric's p-values are corrected for the number of its rows (Holm) before any is called significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from eval.compare.context_use import ContextUse, asked_without_context, context_use, read_without_context
from eval.compare.faithfulness import Faithfulness, compare_faithfulness
from eval.compare.runs import ScoredRun
from eval.compare.subset_comparison import SubsetComparison, compare_subsets
from eval.score.extract import Mode
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import ALL, METRICS, MODES, GroupKey, by_relation, gold_shares, group_of
from eval.score.statistics import Difference, Interval, bootstrap_average, holm, paired_average

AVERAGE = "average"  # the dataset's place in a row that averages a relation's datasets


@dataclass(frozen=True)
class Cell:
    """One run's scores in one row, as fractions; `set_accuracy` for mcq only, `label_shares` for nli only."""

    mean: Interval
    exact_match: Interval
    f1: Interval
    set_accuracy: Interval | None
    extraction: dict[Mode, float]
    label_shares: dict[str, float] | None


@dataclass(frozen=True)
class Gain:
    """One run's paired differences to the first run in one row, as fractions; `set_accuracy` for mcq only."""

    mean: Difference
    exact_match: Difference
    f1: Difference
    set_accuracy: Difference | None


@dataclass(frozen=True)
class Row:
    """One group, the average of a relation's groups, or all samples.

    Attributes:
        dataset: the group's; `average` in a relation's row and `all` in the last one.
        cells: one for each run.
        gains: one for each run after the first.
        context_use: one for each run; None for one that was not asked without the contexts.
        gold_shares: shares of the labels among the gold answers; nli only.
    """

    dataset: str
    relation: str
    format: str
    n: int
    cells: tuple[Cell, ...]
    gains: tuple[Gain, ...]
    context_use: tuple[ContextUse | None, ...]
    gold_shares: dict[str, float] | None


@dataclass(frozen=True)
class Comparison:
    """Runs on one benchmark: a row a group, then the relations' averages, and the last row over all samples.

    Attributes:
        subsets: the same by subset; None where no row is tagged.
        faithfulness: of free answers to contexts, a row a dataset; empty where there are none.
    """

    bench: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    subsets: SubsetComparison | None = None
    faithfulness: tuple[Faithfulness, ...] = ()

    @property
    def asked_without(self) -> list[str]:
        """Labels of the runs that were asked without the contexts, too."""
        uses = self.rows[0].context_use
        return [label for label, use in zip(self.labels, uses, strict=True) if use is not None]

    @property
    def has_sets(self) -> bool:
        """Whether some row is of format mcq."""
        return any(cell.set_accuracy is not None for row in self.rows for cell in row.cells)

    def to_json(self) -> dict[str, Any]:
        """The same as plain dicts and lists, scores as fractions."""
        content = asdict(replace(self, subsets=None))
        del content["subsets"]
        if not self.faithfulness:
            del content["faithfulness"]
        return content if self.subsets is None else {**content, "subsets": self.subsets.to_json()}


def compare_runs(runs: Sequence[ScoredRun], *, seed: int = 0) -> Comparison:
    """Scores and paired differences of runs that `eval.compare.runs.load_runs` found to fit."""
    groups: dict[GroupKey, list[SampleKey]] = {}
    for sample, prediction in runs[0].predictions.items():
        groups.setdefault(group_of(prediction), []).append(sample)
    without = [
        read_without_context(run, run.predictions.values()) if asked_without_context(run) else None for run in runs
    ]
    rows = [_row(key, [samples], runs, without, seed) for key, samples in groups.items()]
    for relation, keys in by_relation(groups).items():
        if len(keys) > 1:  # of one group, the average would only repeat it
            rows.append(_row((AVERAGE, relation, "–"), [groups[key] for key in keys], runs, without, seed))
    if len(groups) > 1:
        rows.append(_row(ALL, [list(runs[0].predictions)], runs, without, seed))
    labels = tuple(run.label for run in runs)
    return Comparison(
        runs[0].scores.bench.name,
        labels,
        _corrected(rows),
        compare_subsets(runs, seed=seed),
        compare_faithfulness(runs, seed=seed),
    )


def _row(
    key: GroupKey,
    groups: Sequence[Sequence[SampleKey]],
    runs: Sequence[ScoredRun],
    without: Sequence[Mapping[SampleKey, Prediction] | None],
    seed: int,
) -> Row:
    """A row over one list of samples, or averaged over several."""
    picked = [[[run.predictions[sample] for sample in samples] for samples in groups] for run in runs]
    return Row(
        *key,
        sum(len(samples) for samples in groups),
        cells=tuple(_cell(run, key, chosen, seed) for run, chosen in zip(runs, picked, strict=True)),
        gains=tuple(_gain(picked[0], chosen, seed) for chosen in picked[1:]),
        context_use=tuple(
            None if answers is None else context_use(chosen, answers, seed=seed)
            for chosen, answers in zip(picked, without, strict=True)
        ),
        gold_shares=gold_shares(picked[0][0]) if key[2] == "nli" else None,
    )


def _cell(run: ScoredRun, key: GroupKey, groups: Sequence[Sequence[Prediction]], seed: int) -> Cell:
    if key[0] != AVERAGE:
        scores = run.scores.overall if key == ALL else next(group for group in run.scores.groups if group.key == key)
        return Cell(*(getattr(scores, field) for field in Cell.__dataclass_fields__))
    mean, exact, f1 = (bootstrap_average(_values(groups, metric), seed=seed) for metric in METRICS)
    return Cell(mean, exact, f1, None, {mode: _mean_share(groups, mode) for mode in MODES}, None)


def _mean_share(groups: Sequence[Sequence[Prediction]], mode: Mode) -> float:
    return sum(sum(p.extraction == mode for p in group) / len(group) for group in groups) / len(groups)


def _gain(before: Sequence[Sequence[Prediction]], after: Sequence[Sequence[Prediction]], seed: int) -> Gain:
    mean, exact, f1 = (paired_average(_values(before, m), _values(after, m), seed=seed) for m in METRICS)
    sets = None
    if len(before) == 1 and all(prediction.format == "mcq" for prediction in before[0]):
        sets = paired_average(_values(before, "set_accuracy"), _values(after, "set_accuracy"), seed=seed)
    return Gain(mean, exact, f1, sets)


def _values(groups: Sequence[Sequence[Prediction]], metric: str) -> list[list[float]]:
    return [[getattr(prediction, metric) or 0.0 for prediction in group] for group in groups]


def _corrected(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with each run's p-values of each metric adjusted for the number of rows."""
    gains = [list(row.gains) for row in rows]
    uses = [list(row.context_use) for row in rows]
    for run in range(len(gains[0])):
        for metric in Gain.__dataclass_fields__:
            tested = [own for own in gains if getattr(own[run], metric) is not None]
            adjusted = holm([getattr(own[run], metric) for own in tested])
            for own, difference in zip(tested, adjusted, strict=True):
                own[run] = replace(own[run], **{metric: difference})
    for run in range(len(uses[0])):
        asked = [(row, use) for row in uses if (use := row[run]) is not None]
        for (row, use), gain in zip(asked, holm([use.gain for _, use in asked]), strict=True):
            row[run] = replace(use, gain=gain)
    return tuple(
        replace(row, gains=tuple(own), context_use=tuple(use)) for row, own, use in zip(rows, gains, uses, strict=True)
    )

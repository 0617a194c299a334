"""Several runs side by side: each group's scores, and each run's gains over the first, sample by sample.

Differences are paired: two runs answer the same questions, so the interval of their difference is much narrower than
their separate intervals suggest. A table tests many rows at once, so each metric's p-values are corrected for the
number of rows (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from d2e_sft.util.progress import Progress
from eval.compare.context_use import ContextUse, context_use, without_context
from eval.compare.faithfulness import Faithfulness, compare_faithfulness
from eval.compare.paired import ComparedRun, changes_to_first, corrected, paired_change
from eval.compare.runs import ScoredRun
from eval.compare.subset_comparison import SmallSubset, SubsetComparison, compare_subsets, small_subsets
from eval.score.extract import Mode
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import ALL, METRICS, MODES, GroupKey, by_relation, gold_shares, group_of
from eval.score.statistics import Difference, Interval, bootstrap_average, paired_average
from eval.score.subsets import AVERAGE, by_kind


@dataclass(frozen=True)
class Cell:
    """One run's scores in one row, as fractions; `set_accuracy` for mcq and `label_shares` for nli only."""

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
        dataset: the group's dataset, `average` or `all`.
        cells, gains: one for each run, and one for each run after the first.
        context_use: one for each run; None if it was not asked without the contexts.
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
class KindOfQuestion:
    """All runs on the questions that ask for the same; their `accuracy`, and that on `conflict` rows if there are any.

    `conflict` is the number of these rows.
    """

    kind: str
    n: int
    conflict: int
    runs: tuple[ComparedRun, ...]


@dataclass(frozen=True)
class Comparison:
    """Runs on one benchmark.

    Attributes:
        rows: one for all samples, then the relations' averages, then the groups.
        subsets: None if no subset has enough rows.
        small_subsets: subsets with too few rows to compare.
        faithfulness: about free answers to contexts, by dataset.
        kinds: free answers by what the questions ask for.
    """

    bench: str
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    subsets: SubsetComparison | None = None
    small_subsets: tuple[SmallSubset, ...] = ()
    faithfulness: tuple[Faithfulness, ...] = ()
    kinds: tuple[KindOfQuestion, ...] = ()

    @property
    def overall(self) -> Row:
        """All samples, or the one group."""
        return self.rows[0]

    @property
    def is_about_subsets(self) -> bool:
        """Whether at least half of the samples are in subsets that are compared."""
        if self.subsets is None:
            return False
        tagged = sum(sum(own.sizes.values()) for own in self.subsets.datasets if own.dataset != AVERAGE)
        return 2 * tagged >= self.overall.n

    @property
    def has_sets(self) -> bool:
        """Whether some row has format mcq."""
        return any(cell.set_accuracy is not None for row in self.rows for cell in row.cells)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, with scores as fractions."""
        content = asdict(replace(self, subsets=None))
        for name in ("subsets", "small_subsets", "faithfulness", "kinds"):
            if not content[name]:
                del content[name]
        return content if self.subsets is None else {**content, "subsets": self.subsets.to_json()}


def compare_runs(runs: Sequence[ScoredRun], *, seed: int = 0) -> Comparison:
    """Compare runs that `load_runs` read together; differences are to the first."""
    groups: dict[GroupKey, list[SampleKey]] = {}
    for sample, prediction in runs[0].predictions.items():
        groups.setdefault(group_of(prediction), []).append(sample)
    without = [without_context(run) for run in runs]
    members = {ALL: [list(runs[0].predictions)]} if len(groups) > 1 else {}
    for relation, keys in by_relation(groups).items():
        if len(keys) > 1:
            members[AVERAGE, relation, "–"] = [groups[key] for key in keys]
    members |= {key: [samples] for key, samples in groups.items()}
    shown = Progress(members.items(), desc="comparing", unit="group")
    rows = [_row(key, own, runs, without, seed) for key, own in shown]
    return Comparison(
        runs[0].scores.bench.name,
        tuple(run.label for run in runs),
        _corrected(rows),
        compare_subsets(runs, seed=seed),
        small_subsets(runs),
        compare_faithfulness(runs, seed=seed),
        compare_kinds(runs, seed=seed),
    )


def compare_kinds(runs: Sequence[ScoredRun], *, seed: int = 0) -> tuple[KindOfQuestion, ...]:
    """Compare runs by what the questions ask for, see `by_kind`; empty for suites.

    P-values are corrected for all kinds, runs and measures together.
    """
    is_suite = runs[0].scores.bench.suite is not None
    kinds = {} if is_suite else by_kind([*runs[0].predictions.values()])
    parts = {f"accuracy {kind}": own for kind, own in kinds.items()}
    conflict = {kind: [one for one in own if one.subset == "conflict"] for kind, own in kinds.items()}
    parts |= {f"conflict {kind}": own for kind, own in conflict.items() if own}
    keys = {part: [(one.dataset, one.id) for one in own] for part, own in parts.items()}
    right = [
        {part: [{key: float(run.predictions[key].right) for key in own}] for part, own in keys.items()} for run in runs
    ]
    scores = [{part: bootstrap_average([[*own.values()]], seed=seed) for part, [own] in one.items()} for one in right]
    changes = changes_to_first(right, partial(paired_change, seed=seed))

    def compared(place: int, kind: str) -> ComparedRun:
        names = {name: f"{name} {kind}" for name in ("accuracy", "conflict")}
        score = {name: scores[place][part] for name, part in names.items() if part in keys}
        return ComparedRun(
            runs[place].label, score, {name: changes[place][names[name]] for name in score if changes[place]}
        )

    return tuple(
        KindOfQuestion(kind, len(own), len(conflict[kind]), tuple(compared(place, kind) for place in range(len(runs))))
        for kind, own in kinds.items()
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
        sum(map(len, groups)),
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
    shares = {mode: sum(sum(p.extraction == mode for p in own) / len(own) for own in groups) for mode in MODES}
    return Cell(mean, exact, f1, None, {mode: share / len(groups) for mode, share in shares.items()}, None)


def _gain(before: Sequence[Sequence[Prediction]], after: Sequence[Sequence[Prediction]], seed: int) -> Gain:
    def change(metric: str) -> Difference:
        return paired_average(_values(before, metric), _values(after, metric), seed=seed)

    has_sets = len(before) == 1 and all(prediction.format == "mcq" for prediction in before[0])
    mean, exact, f1 = map(change, METRICS)
    return Gain(mean, exact, f1, change("set_accuracy") if has_sets else None)


def _values(groups: Sequence[Sequence[Prediction]], metric: str) -> list[list[float]]:
    return [[getattr(prediction, metric) or 0.0 for prediction in group] for group in groups]


def _corrected(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with each run's p-values of each metric corrected for the number of rows."""
    metrics = [*Gain.__dataclass_fields__]
    gains = [_corrected_column(own, metrics) for own in zip(*(row.gains for row in rows), strict=True)]
    uses = [_corrected_column(own, ["gain"]) for own in zip(*(row.context_use for row in rows), strict=True)]
    return tuple(
        replace(row, gains=tuple(own[place] for own in gains), context_use=tuple(own[place] for own in uses))
        for place, row in enumerate(rows)
    )


def _corrected_column(entries: Sequence[Any], fields: Sequence[str]) -> list[Any]:
    """One run's entries, a row each, with each of these fields corrected; None stays None."""
    columns = {name: corrected(getattr(one, name, None) for one in entries) for name in fields}
    return [
        None if one is None else replace(one, **{name: column[place] for name, column in columns.items()})
        for place, one in enumerate(entries)
    ]

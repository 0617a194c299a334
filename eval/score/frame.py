"""One table of scores: a row for each measure of each sample of each run, and the means and differences of groups.

Columns: `run`, `row` (the sample's place in the first run), `dataset`, `relation`, `format`, `subset`, `kind`, `id`,
`measure` and `value`. A share is the mean of zeros and ones. A measure that a sample does not have, such as the set
accuracy of a free answer, has no row.

A grouping is a second table: `row`, the columns that name a group, and `stratum`. A group's score is the mean of its
strata's means, so a group with one stratum weighs its samples alike, and an average has its groups as strata. A sample
may be in several groups. Strata with the `sign` −1 are subtracted from the others: a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas import DataFrame

from d2e_sft.data.prompts import NOT_OF_EVENTS
from d2e_sft.data.sample import ENOUGH_ROWS, NLI_LABELS, SUBSETS
from d2e_sft.util.answers import asked_for
from eval.score.confiqa import DATASETS as CONFIQA
from eval.score.confiqa import RATIO as CONFIQA_RATIO
from eval.score.confiqa import confiqa_measures
from eval.score.faithfulness import has_free_answer, refusals_of, word_measures
from eval.score.predictions import Prediction
from eval.score.scores import METRICS, MODES
from eval.score.statistics import bootstrap_average, bootstrap_ratio, holm, paired_average

ALL, AVERAGE = "all", "average"  # what stands for a dataset where a group has several
_TAKEN = {name: f"{name} (dataset)" for name in (ALL, AVERAGE)}  # a dataset of that name would join these rows
GROUP = ["dataset", "relation", "format"]
LABELS = (*NLI_LABELS, "other")
CELLS = ("context_only", "habit_only", "both", "neither")
BOTH = ("aligned", "conflict")  # subsets that a gap is between
GAP, BALANCED = "gap", "balanced"  # in the place of a subset
OTHER_QUESTIONS = "other questions"
_SAMPLE = [*GROUP, "subset", "kind", "id"]
_LEAST_OF_KIND, _MOST_KINDS = 10, 12


def measures_of(prediction: Prediction, refusals: Collection[str] = ()) -> dict[str, float]:
    """Return measure → value of one prediction; `refusals` as for `word_measures`."""
    values: dict[str, Any] = {name: getattr(prediction, name) for name in METRICS}
    values["accuracy"] = prediction.right
    if prediction.format == "mcq":
        values["set_accuracy"] = prediction.set_accuracy or 0
    if prediction.likelihoods:
        values |= {"acc": prediction.acc, "acc_norm": prediction.acc_norm}
    values |= {mode: prediction.extraction == mode for mode in MODES} | {"ambiguous": bool(prediction.ambiguous)}
    if prediction.format == "nli":
        answer = prediction.answer[0] if prediction.parsed and len(prediction.answer) == 1 else "other"
        values |= {f"says {label}": answer == label for label in LABELS}
        values |= {f"gold {label}": prediction.gold == [label] for label in NLI_LABELS}
    if prediction.events:
        values |= {f"events {name}": value for name, value in prediction.events}
    if has_free_answer(prediction):
        values |= word_measures(prediction, refusals)
    values |= confiqa_measures(prediction)
    if prediction.habit and prediction.subset not in (None, "aligned"):
        values["habit_rate"] = prediction.gives(prediction.habit)
        if prediction.subset == "conflict":
            context, habit = prediction.contains(prediction.gold), prediction.contains(prediction.habit)
            values |= {"contains context": context, "contains habit": habit}
            cells = ((True, False), (False, True), (True, True), (False, False))
            values |= {name: (context, habit) == cell for name, cell in zip(CELLS, cells, strict=True)}
    return {name: float(value) for name, value in values.items()}


def frame_of(
    runs: Mapping[str, Mapping[Any, Prediction]],
    measures: Callable[[Prediction], Mapping[str, float]] | None = None,
) -> DataFrame:
    """Return the table of runs' predictions, given by run and by a key of the sample; all runs have the same keys.

    `measures` gives the values of a prediction, instead of `measures_of`.
    """
    first = next(iter(runs.values()))
    if measures is None:
        measures = partial(measures_of, refusals=refusals_of(first.values()))
    places = {key: place for place, key in enumerate(first)}
    records = [
        (run, places[key], measure, value)
        for run, predictions in runs.items()
        for key, prediction in predictions.items()
        for measure, value in measures(prediction).items()
    ]
    samples = [
        (_TAKEN.get(p.dataset, p.dataset), p.relation, p.format, p.subset, _kind(p), p.id) for p in first.values()
    ]
    values = DataFrame(records, columns=["run", "row", "measure", "value"])
    return values.join(DataFrame(samples, columns=_SAMPLE, dtype=object), on="row")


def samples_of(frame: DataFrame) -> DataFrame:
    """Return a row for each sample, in order: `row` and the columns about the sample."""
    return frame.drop_duplicates("row").sort_values("row")[["row", *_SAMPLE]].reset_index(drop=True)


def _kind(prediction: Prediction) -> str | None:
    is_question = prediction.format in ("qa", "chat") and prediction.relation in NOT_OF_EVENTS
    return asked_for(prediction.question) if is_question else None


# Groupings -----------------------------------------------------------------------------------------------------------


def by_group(samples: DataFrame) -> DataFrame:
    """Group by all samples, by relation (the average of its groups) and by dataset × relation × format.

    All samples are left out if there is one group, and the average of a relation with one group.
    """
    keys = pd.Series(list(zip(samples.dataset, samples.relation, samples.format, strict=True)), index=samples.index)
    has_several = keys.groupby(samples.relation).transform("nunique") > 1
    averages = samples.assign(dataset=AVERAGE, format="–", stratum=keys)[has_several]
    overall = [samples.assign(dataset=ALL, relation=ALL, format=ALL, stratum=0)] if keys.nunique() > 1 else []
    return pd.concat([*overall, averages, samples.assign(stratum=0)])[["row", *GROUP, "stratum"]]


def by_subset(samples: DataFrame, *, least: int = 1) -> DataFrame:
    """Group tagged samples by dataset and subset, with the gap and the balanced accuracy of aligned and conflict.

    Last comes the average over datasets if it is over several: those with 20 aligned and 20 conflict rows or more,
    otherwise those that have both. Subsets of fewer rows than `least` are left out.
    """
    tagged = samples[samples.subset.notna()]
    tagged = tagged[tagged.groupby(["dataset", "subset"]).row.transform("size") >= least]
    tagged = tagged.sort_values("subset", key=lambda names: names.map(SUBSETS.index), kind="stable")
    places = {name: place for place, name in enumerate(samples.dataset.unique())}
    tagged = tagged.sort_values("dataset", key=lambda names: names.map(places), kind="stable")
    sizes = {dataset: rows.subset.value_counts() for dataset, rows in tagged.groupby("dataset", sort=False)}
    fewest = {dataset: min(int(counts.get(name, 0)) for name in BOTH) for dataset, counts in sizes.items()}
    averaged = [name for name, n in fewest.items() if n >= ENOUGH_ROWS] or [name for name, n in fewest.items() if n]
    parts = [part for name, rows in tagged.groupby("dataset", sort=False) for part in _subsets(rows, str(name))]
    if len(averaged) > 1:
        members = tagged[tagged.dataset.isin(averaged) & tagged.subset.isin(BOTH)]
        parts += _subsets(members, AVERAGE)
    columns = ["row", "dataset", "subset", "stratum", "sign"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else DataFrame(columns=columns)


def _subsets(tagged: DataFrame, name: str) -> Iterator[DataFrame]:
    """Group by subset, whose strata are the datasets; then the gap and the balance of aligned and conflict rows."""
    tagged = tagged.assign(dataset=name, stratum=tagged.dataset, sign=1)
    yield from (rows for _, rows in tagged.groupby("subset", sort=False))
    both = tagged[tagged.subset.isin(BOTH)]
    if both.subset.nunique() == len(BOTH):
        both = both.assign(stratum=both.stratum + "/" + both.subset)
        yield both.assign(sign=both.subset.map({"aligned": 1, "conflict": -1}), subset=GAP)
        yield both.sort_values("subset", kind="stable").assign(subset=BALANCED)


def by_kind(samples: DataFrame) -> DataFrame:
    """Group free answers by what their questions ask for, the largest kinds first, and conflict rows of each kind.

    Kinds of fewer than 10 rows, and those after the twelfth, are `other questions`. Returns nothing unless two kinds
    have 10 rows.
    """
    questions = samples[samples.kind.notna()]
    sizes = questions.kind.value_counts(sort=False)
    sizes = sizes.loc[questions.kind.unique()].sort_values(ascending=False, kind="stable")
    shown = list(sizes[sizes >= _LEAST_OF_KIND].index)[:_MOST_KINDS]
    if len(shown) < 2:
        return DataFrame(columns=["row", "kind", "subset", "stratum"])
    places = {kind: place for place, kind in enumerate([*shown, OTHER_QUESTIONS])}
    questions = questions.assign(kind=questions.kind.where(questions.kind.isin(shown), OTHER_QUESTIONS))
    questions = questions.sort_values("kind", key=lambda kinds: kinds.map(places), kind="stable")
    parts = [questions.assign(subset=ALL), questions[questions.subset == "conflict"]]
    return pd.concat(parts).assign(stratum=0)[["row", "kind", "subset", "stratum"]]


def by_dataset(samples: DataFrame) -> DataFrame:
    groups = samples.assign(stratum=0)[["row", "dataset", "stratum"]]
    overall = [groups.assign(dataset=ALL)] if groups.dataset.nunique() > 1 else []
    return pd.concat([groups, *overall])


def by_confiqa(samples: DataFrame) -> DataFrame:
    """Group ConFiQA's conflict rows by part; last come all rows with the parts as strata, if all three are there."""
    rows = samples[samples.dataset.isin(CONFIQA) & (samples.subset == "conflict")]
    rows = rows.assign(stratum=rows.dataset)[["row", "dataset", "stratum"]]
    average = [rows.assign(dataset=AVERAGE)] if rows.dataset.nunique() == len(CONFIQA) else []
    return pd.concat([rows, *average])


# Scores of groups ----------------------------------------------------------------------------------------------------


def means(
    frame: DataFrame, groups: DataFrame, measures: Collection[str], *, plain: Collection[str] = (), seed: int = 0
) -> DataFrame:
    """Return each run's mean of each measure in each group, with its 95 % interval.

    Columns: those that name a group, `measure`, `run`, `rows` (of the group), `n` (those with a value), `mean`, `low`
    and `high`; the last two are missing for measures in `plain`. Strata without a value are left out.
    """
    rows = []
    for names, size, signs, strata in _split(frame, groups, [*measures, *plain]):
        defined = [(values, sign) for values, sign in zip(_defined(strata), signs, strict=True) if values.size]
        if not defined:
            continue
        values, weights = [v for v, _ in defined], np.array([sign for _, sign in defined]) / len(defined)
        weights *= 2 if weights.min() < 0 else 1
        n = sum(v.size for v in values)
        if names[-2] in plain:
            rows.append((*names, size, n, float(weights @ [v.mean() for v in values]), np.nan, np.nan))
        else:
            score = bootstrap_average(values, weights=list(weights), seed=seed)
            rows.append((*names, size, n, score.mean, score.low, score.high))
    return DataFrame(rows, columns=[*_names(groups), "rows", "n", "mean", "low", "high"])


def ratios(frame: DataFrame, groups: DataFrame, part: str, rest: str, name: str, *, seed: int = 0) -> DataFrame:
    """Return, as the measure `name`, each run's `part / (part + rest)`; columns as in `means`."""
    rows = []
    pairs = zip(_split(frame, groups, [part]), _split(frame, groups, [rest]), strict=True)
    for (names, size, _, parts), (_, _, _, rests) in pairs:
        values = [v for v in _defined(parts) if v.size]
        ratio = bootstrap_ratio(values, [v for v in _defined(rests) if v.size], seed=seed) if values else None
        if ratio is not None:
            n = sum(v.size for v in values)
            rows.append((*names[:-2], name, names[-1], size, n, ratio.mean, ratio.low, ratio.high))
    return DataFrame(rows, columns=[*_names(groups), "rows", "n", "mean", "low", "high"])


def subset_means(frame: DataFrame, groups: DataFrame, measures: Collection[str], *, seed: int = 0) -> DataFrame:
    """Return accuracies of subsets and what is between them, `measures` of subsets, and cells of conflict rows."""
    real = groups[~groups.subset.isin([GAP, BALANCED])]
    conflict = real[real.subset == "conflict"]
    return together(
        means(frame, groups, ["accuracy"], seed=seed),
        means(frame, real, measures, seed=seed),
        means(frame, conflict, [], plain=CELLS),
        ratios(frame, conflict, "contains habit", "contains context", "memorisation_ratio", seed=seed),
    )


def confiqa_ratios(frame: DataFrame, groups: DataFrame, *, seed: int = 0) -> DataFrame:
    """Return ConFiQA's M_R like `ratios`; that of an average is the mean of its parts' ratios, without bounds."""
    table = ratios(frame, groups[groups.dataset != AVERAGE], *CONFIQA_RATIO, seed=seed)
    if (groups.dataset != AVERAGE).all():
        return table
    by_run = table.groupby(["measure", "run"], sort=False)
    means = by_run[["rows", "n"]].sum().join(by_run["mean"].mean())[by_run.size() == len(CONFIQA)]
    return together(table, means.reset_index().assign(dataset=AVERAGE))


def changes(frame: DataFrame, groups: DataFrame, measures: Collection[str], *, seed: int = 0) -> DataFrame:
    """Return each run's paired difference to the first run in each measure and group, over samples that both have.

    A gap has none.

    Columns: those that name a group, `measure`, `run`, `change`, `change_low`, `change_high` and `p` (sign-flip test).
    """
    rows, first = [], frame.run.iloc[0]
    before: list[NDArray[np.float64]] = []
    for names, _, signs, strata in _split(frame, groups, measures):
        if names[-1] == first:
            before = strata
            continue
        pairs = [np.stack(pair, axis=1) for pair in zip(before, strata, strict=True)]
        shared = [pair[~np.isnan(pair).any(axis=1)] for pair in pairs]  # (N, 2)
        if all(map(len, shared)) and min(signs) > 0:
            change = paired_average([pair[:, 0] for pair in shared], [pair[:, 1] for pair in shared], seed=seed)
            rows.append((*names, change.mean, change.low, change.high, change.p_value))
    return DataFrame(rows, columns=[*_names(groups), "change", "change_low", "change_high", "p"])


def with_holm(table: DataFrame, family: Sequence[str]) -> DataFrame:
    """Return the table with `adjusted_p`: `p` corrected together for the rows that share the columns in `family`."""
    tested = table[table["p"].notna()].assign(together=0)
    adjusted = tested.groupby(["together", *family], sort=False)["p"].transform(holm) if len(tested) else tested["p"]
    return table.assign(adjusted_p=adjusted)


def together(*parts: DataFrame) -> DataFrame:
    """Return the parts below each other, without empty ones, whose columns have no types."""
    return pd.concat([part for part in parts if len(part)] or parts[:1])


def _names(groups: DataFrame) -> list[str]:
    return [*(name for name in groups.columns if name not in ("row", "stratum", "sign")), "measure", "run"]


def _split(
    frame: DataFrame, groups: DataFrame, measures: Collection[str]
) -> Iterator[tuple[tuple[Any, ...], int, list[int], list[NDArray[np.float64]]]]:
    """Yield the names of a group, measure and run; the group's size; sign and values of each stratum (NaN: none)."""
    if frame.empty:
        return
    members = []
    for key, group in groups.groupby(_names(groups)[:-2], sort=False):
        strata = [part for _, part in group.groupby("stratum", sort=False)]
        signs = [int(part.sign.iloc[0]) if "sign" in part else 1 for part in strata]
        members.append((key, len(group), signs, [part.row.to_numpy() for part in strata]))
    runs, rows = list(frame.run.unique()), range(int(max(frame.row.max(), groups.row.max())) + 1)
    for measure in dict.fromkeys(measures):
        values = frame[frame.measure == measure].pivot(index="row", columns="run", values="value")
        columns = values.reindex(index=rows, columns=runs).to_numpy().T  # (R, N)
        for key, size, signs, strata in members:
            for run, column in zip(runs, columns, strict=True):
                yield (*key, measure, run), size, signs, [column[rows] for rows in strata]


def _defined(strata: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    return [values[~np.isnan(values)] for values in strata]

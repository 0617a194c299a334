"""Several runs side by side: a table of scores of groups, and each run's paired differences to the first.

Differences are paired: two runs answer the same questions, so the interval of their difference is much narrower than
their separate intervals suggest. A table tests many rows at once, so p-values are corrected together (Holm).

The table has a row for each part, group, measure and run. The parts are
- `groups`: all samples, relations' averages, and dataset × relation × format; corrected for a run's rows of a measure;
- `context`: the score `without` the context, what the context adds, and the share of answers that stay the `same`;
- `subsets`: by dataset and subset; corrected for a dataset's runs and subsets;
- `confiqa`: ConFiQA's own measures by its parts, and their average; corrected for a part's runs and measures;
- `faithfulness`: free answers to contexts by dataset; corrected for a dataset's runs and measures;
- `kinds`: free answers by what the questions ask for; corrected for all kinds and runs;
- `measures`: those of a related system (`compare_measures`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
from pandas import DataFrame

from d2e_sft.data.built import other_taggers
from d2e_sft.data.sample import ENOUGH_ROWS, SUBSETS
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress
from eval.compare.decoding import ALIKE, DecodingDifferences, decoding_of_runs, without_context
from eval.compare.judged import Verdict, read_judged
from eval.compare.lm_eval import OUTSIDE
from eval.compare.runs import MeasuredRun, ScoredRun, costs_of_runs
from eval.score import frame as table
from eval.score.confiqa import MEASURES as CONFIQA_MEASURES
from eval.score.faithfulness import MEASURES
from eval.score.measures import Measure
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import METRICS, headline
from eval.score.statistics import Difference, Interval, paired_counts

JUDGED = ("supported", "correct")
Answers = Mapping[SampleKey, Prediction]
COLUMNS = ["part", *table.GROUP, "subset", "kind", "measure", "unit", "run"]
NUMBERS = ["rows", "n", "mean", "low", "high", "change", "change_low", "change_high", "p"]
# Part → the columns whose values are shared by the rows whose p-values are corrected together.
_FAMILIES: Mapping[str, list[str]] = {
    "groups": ["run", "measure"],
    "context": ["run"],
    "subsets": ["dataset"],
    "faithfulness": ["dataset"],
    "confiqa": ["dataset"],
    "kinds": [],
    "measures": ["is headline"],
}


@dataclass(frozen=True)
class Score(Interval):
    """One run's score in one group, over the `n` of its `rows` that have one; `change` is that to the first run.

    A score without an interval has NaN as its bounds.
    """

    rows: int
    n: int
    change: Difference | None = None


@dataclass(frozen=True)
class Block:
    """All runs' scores in one group, by run, measure and subset; `name` is the group's, such as its dataset."""

    name: tuple[str, ...]
    scores: Mapping[tuple[str, str, str], Score]

    def score(self, run: str, measure: str, subset: str = "") -> Score | None:
        return self.scores.get((run, measure, subset))

    @property
    def sizes(self) -> dict[str, int]:
        """Return subset → number of rows, without the gap."""
        return {subset: score.rows for (_, _, subset), score in self.scores.items() if subset in ("", *SUBSETS)}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on one benchmark.

    Attributes:
        scores: The table, with the columns `COLUMNS` and those of `means` and `changes` of `eval.score.frame`.
        small_subsets: Right answers of each run in subsets with too few rows to compare, by dataset, subset and size.
        untagged: Number of samples without a subset.
        tagged_by: Models whose habits the subsets are about; `strangers` are the runs of other models.
        left_out: Measures that not all runs have, or whose values are no shares.
        bad_rows: Number of rows of the benchmark that are in no run's scores.
        decoding: Where the decoding of the runs differs.
        costs: Label → `steps` and `cpu_seconds` of its training, for runs that recorded them.
        by_seed: For groups of runs, which are then the `labels`: the table of each seed, with the column `seed`.
    """

    bench: str
    labels: tuple[str, ...]
    scores: DataFrame
    small_subsets: Mapping[tuple[str, str, int], Mapping[str, int]] | None = None
    untagged: int = 0
    tagged_by: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    bad_rows: int = 0
    decoding: DecodingDifferences = ALIKE
    costs: Mapping[str, Mapping[str, float]] | None = None
    by_seed: DataFrame | None = None

    @property
    def seeds(self) -> list[int]:
        return [] if self.by_seed is None else [int(seed) for seed in self.by_seed.seed.unique()]

    @property
    def latex_label(self) -> str:
        """The benchmark's name as a part of LaTeX labels; a comma there would separate two labels."""
        return re.sub(r"[\s,]+", "-", self.bench.partition(", ")[0])

    @property
    def intervals(self) -> str:
        """What the intervals are called in captions."""
        return f"95 % t intervals over {len(self.seeds)} seeds" if self.seeds else "95 % intervals"

    def test(self, default: str) -> str:
        """What the test of differences is called in captions; `default` is that of single runs."""
        return "a paired t-test over seeds" if self.seeds else default

    @property
    def size(self) -> str:
        """The number of samples of the main score, such as `1,204 samples`, and of seeds."""
        rows = f"{self.main[0].sizes['']:,} {self.unit}"
        return f"{len(self.seeds)} seeds of {rows}" if self.seeds else rows

    def blocks(self, part: str, *by: str) -> list[Block]:
        """Return the groups of a part, named by the columns `by`, in order."""
        rows = self.scores[self.scores.part == part]
        by_name: dict[tuple[str, ...], dict[tuple[str, str, str], Score]] = {}
        for cell in rows.itertuples():
            tested = (cell.change, cell.change_low, cell.change_high, cell.p)
            change = None if pd.isna(cell.change) else Difference(*tested, cell.adjusted_p)
            score = Score(cell.mean, cell.low, cell.high, int(cell.rows), int(cell.n), change)
            block = by_name.setdefault(tuple(getattr(cell, name) for name in by), {})
            block[cell.run, cell.measure, cell.subset] = score
        return [Block(*item) for item in by_name.items()]

    @property
    def groups(self) -> list[Block]:
        """All samples (or the one group) first, then averages of relations, then groups."""
        return self.blocks("groups", *table.GROUP)

    @property
    def is_by_measures(self) -> bool:
        return bool((self.scores.part == "measures").any())

    @property
    def main(self) -> tuple[Block, str]:
        """The group and the measure that verdicts are about: the mean over all samples, or the first measure."""
        block = self.blocks("measures", "measure", "unit")[0] if self.is_by_measures else self.groups[0]
        return block, block.name[0] if self.is_by_measures else "mean"

    @property
    def unit(self) -> str:
        """Plural name of what the main score is about."""
        return self.main[0].name[1] if self.is_by_measures else "samples"

    @property
    def subsets(self) -> list[Block]:
        """The datasets with subsets, then their average."""
        return self.blocks("subsets", "dataset")

    @property
    def headline(self) -> Block | None:
        """The dataset that the verdicts on subsets are about; None without subsets."""
        blocks = self.subsets
        return blocks[headline([block.sizes for block in blocks])] if blocks else None

    @property
    def refusals(self) -> Block | None:
        """The dataset with rows that lack the answer and others, or all datasets; None without such rows."""
        blocks = self.blocks("faithfulness", "dataset")
        both = [b for b in blocks if {"refusal", "false_refusal"} <= {measure for _, measure, _ in b.scores}]
        return both[-1] if both else None

    @property
    def is_about_subsets(self) -> bool:
        """Whether at least half of the samples are in subsets that are compared."""
        tagged = sum(sum(block.sizes.values()) for block in self.subsets if block.name != (table.AVERAGE,))
        return tagged > 0 and 2 * tagged >= self.groups[0].sizes[""]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists; `scores` has the rows of the table without empty columns, as fractions."""
        facts = {name: getattr(self, name) for name in ("untagged", "tagged_by", "strangers", "left_out", "costs")}
        small = [
            {"dataset": dataset, "subset": subset, "n": n, "right": dict(right)}
            for (dataset, subset, n), right in (self.small_subsets or {}).items()
        ]
        facts |= {"small_subsets": small, "decoding": vars(self.decoding) if self.decoding else None}
        facts |= {"seeds": self.seeds, "by_seed": [] if self.by_seed is None else _records(self.by_seed)}
        kept = {name: value for name, value in facts.items() if value}
        return {"bench": self.bench, "labels": self.labels, **kept, "scores": _records(self.scores)}


def _records(table: DataFrame) -> list[dict[Any, Any]]:
    rows = table.to_dict("records")
    return [{name: value for name, value in row.items() if value != "" and not pd.isna(value)} for row in rows]


def compare_results(runs: Sequence[ScoredRun | MeasuredRun]) -> Comparison:
    """Compare runs that `load_results` read together; differences are to the first."""
    return replace(compare_scores(runs), decoding=decoding_of_runs(runs), costs=costs_of_runs(runs))


def compare_scores(runs: Sequence[ScoredRun | MeasuredRun]) -> Comparison:
    """Compare the scores alone: not how the runs were decoded, nor what their trainings cost."""
    measured = [run for run in runs if isinstance(run, MeasuredRun)]
    if measured:
        found = compare_measures(measured[0].bench, {run.label: run.measures for run in measured})
        outside = (name for run in measured for name in run.scores.get(OUTSIDE, ()))
        return replace(found, left_out=tuple(dict.fromkeys([*found.left_out, *outside])))
    return compare_runs([run for run in runs if isinstance(run, ScoredRun)])


def compare_runs(runs: Sequence[ScoredRun], *, seed: int = 0) -> Comparison:
    """Compare runs that `load_runs` read together."""
    frame = table.frame_of({run.label: run.predictions for run in runs})
    samples = table.samples_of(frame)
    unread = {run.label: (run, answers) for run in runs if (answers := without_context(run)) is not None}
    steps = [partial(_groups, frame), partial(_faithfulness, runs, frame)]
    steps += [partial(_context, *pair) for pair in unread.values()]
    steps += [partial(_subsets, unread.values(), frame), partial(_confiqa, frame)]
    if runs[0].scores.bench.suite is None:
        steps.append(partial(_kinds, frame))
    parts = [step(samples, seed) for step in Progress(steps, desc="comparing", unit="table")]
    small: dict[tuple[str, str, int], dict[str, int]] = {}
    counted = table.means(frame, table.by_subset(samples), [], plain=["accuracy"])
    few = counted[(counted.rows < ENOUGH_ROWS) & (counted.dataset != table.AVERAGE) & counted.subset.isin(SUBSETS)]
    for row in few.itertuples():
        small.setdefault((row.dataset, row.subset, row.rows), {})[row.run] = round(row.mean * row.rows)
    tagged_by = tuple(dict.fromkeys(name for run in runs for name in run.scores.tagged_by))
    return Comparison(
        runs[0].scores.bench.name,
        tuple(run.label for run in runs),
        joined(parts),
        small_subsets=small,
        untagged=int(samples.subset.isna().sum()) if samples.subset.notna().any() else 0,
        tagged_by=tagged_by,
        strangers=tuple(run.label for run in runs if other_taggers(tagged_by, run.scores.model)),
        bad_rows=runs[0].scores.bad_rows,  # the same for all runs, since they share the file and the samples
    )


def joined(parts: Sequence[DataFrame]) -> DataFrame:
    """Return the parts as one table, with `adjusted_p`."""
    whole = pd.concat([DataFrame(columns=COLUMNS), *(part for part in parts if len(part))], ignore_index=True)
    whole = whole.reindex(columns=COLUMNS + NUMBERS).fillna(dict.fromkeys(COLUMNS, ""))
    whole["is headline"] = whole["measure"] == whole["measure"].iloc[:1].squeeze()
    tested = [table.with_holm(rows, _FAMILIES[str(name)]) for name, rows in whole.groupby("part", sort=False)]
    whole = pd.concat(tested) if tested else whole.assign(adjusted_p=None)
    return whole[[*COLUMNS, *NUMBERS, "adjusted_p"]].astype({"rows": int, "n": int})


def compare_kinds(run: ScoredRun, *, seed: int = 0) -> Comparison:
    frame = table.frame_of({run.label: run.predictions}, lambda prediction: {"accuracy": prediction.right})
    kinds = [_kinds(frame, table.samples_of(frame), seed)] if run.scores.bench.suite is None else []
    return Comparison(run.scores.bench.name, (run.label,), joined(kinds))


def _scored(
    part: str, frame: DataFrame, groups: DataFrame, measures: Sequence[str], seed: int, **options: Any
) -> DataFrame:
    """Return rows of a part: the means of groups, and the differences to the first run."""
    changes = table.changes(frame, groups, measures, seed=seed)
    return _with(changes, table.means(frame, groups, measures, seed=seed, **options)).assign(part=part)


def _with(changes: DataFrame, means: DataFrame) -> DataFrame:
    return means.merge(changes, how="left", on=list(changes.columns[:-4]))


def _groups(frame: DataFrame, samples: DataFrame, seed: int) -> DataFrame:
    labels = [name for name in frame.measure.unique() if name.startswith(("says ", "gold "))]
    plain, metrics = [*table.MODES, *labels], (*METRICS, "set_accuracy")
    scores = _scored("groups", frame, table.by_group(samples), metrics, seed, plain=plain)
    # A metric that only some samples have is no score of the group; labels are those of nli.
    return scores[(scores.n == scores.rows) & ((scores.format == "nli") | ~scores.measure.isin(labels))]


def _context(run: ScoredRun, unread: Answers, samples: DataFrame, seed: int) -> DataFrame:
    """What the context adds to a run that was also asked without it.

    The change of `without` leads to the score with the context. Without it answers are decoded plainly, so the change
    includes debiasing. A sample without a context is its own counterpart.
    """
    groups = table.by_group(samples)

    def without(prediction: Prediction) -> dict[str, float]:
        return {"without": unread.get((prediction.dataset, prediction.id), prediction).mean}

    def same(prediction: Prediction) -> dict[str, float]:
        counterpart = unread.get((prediction.dataset, prediction.id), prediction)
        unchanged = prediction.parsed and counterpart.parsed and prediction.says_same(counterpart.answer)
        return {"without": prediction.mean, "same": float(unchanged)}

    before, after = table.frame_of({"": run.predictions}, without), table.frame_of({run.label: run.predictions}, same)
    gain = table.changes(pd.concat([before, after]), groups, ["without"], seed=seed)
    scores = _with(gain, table.means(before.assign(run=run.label), groups, ["without"], seed=seed))
    return pd.concat([scores, table.means(after, groups, [], plain=["same"])]).assign(part="context")


def _faithfulness(runs: Sequence[ScoredRun], frame: DataFrame, samples: DataFrame, seed: int) -> DataFrame:
    """Free answers to contexts, by words, and by a judge's verdicts if there are any."""
    verdicts = []
    for run in runs:
        if judged := read_judged(run):
            verdicts.append(table.frame_of({run.label: run.predictions}, partial(_judged, judged)))
    frame = pd.concat([frame, *verdicts])
    answers = samples[samples.row.isin(frame[frame.measure == "contained"].row)]
    return _scored("faithfulness", frame, table.by_dataset(answers), (*MEASURES, *JUDGED), seed)


def _judged(verdicts: Mapping[SampleKey, Verdict], prediction: Prediction) -> dict[str, float]:
    verdict = verdicts.get((prediction.dataset, prediction.id))
    return {} if verdict is None else {name: float(getattr(verdict, name)) for name in JUDGED}


def _subsets(
    unread: Collection[tuple[ScoredRun, Answers]], frame: DataFrame, samples: DataFrame, seed: int
) -> DataFrame:
    """Accuracy by subset; on conflict rows also the answers and the models' own habits, without the contexts.

    `own habit` is how often a model gives the habit without the context, `on own habit` its accuracy on these rows.
    """
    groups = table.by_subset(samples, least=ENOUGH_ROWS)
    groups = groups[groups.subset != table.BALANCED]
    conflict = groups[groups.subset == "conflict"]
    scores = table.subset_means(frame, groups, ["habit_rate"], seed=seed)
    habits = (table.means(_own_habit(*pair), conflict, ["own habit", "on own habit"], seed=seed) for pair in unread)
    changes = table.changes(frame, groups, ["accuracy"], seed=seed)
    return table.together(_with(changes, scores), *habits).assign(part="subsets")


def _confiqa(frame: DataFrame, samples: DataFrame, seed: int) -> DataFrame:
    groups = table.by_confiqa(samples)
    measures = [name for name in CONFIQA_MEASURES if name in frame.measure.values]
    scores = _scored("confiqa", frame, groups, measures, seed)
    return table.together(scores, table.confiqa_ratios(frame, groups, seed=seed).assign(part="confiqa"))


def _own_habit(run: ScoredRun, unread: Answers) -> DataFrame:
    def measures(prediction: Prediction) -> dict[str, float]:
        if prediction.subset != "conflict" or not prediction.habit:
            return {}
        gives = unread.get((prediction.dataset, prediction.id), prediction).gives(prediction.habit)
        return {"own habit": float(gives)} | ({"on own habit": float(prediction.right)} if gives else {})

    return table.frame_of({run.label: run.predictions}, measures)


def _kinds(frame: DataFrame, samples: DataFrame, seed: int) -> DataFrame:
    return _scored("kinds", frame, table.by_kind(samples), ["accuracy"], seed)


def compare_measures(bench: str, results: Mapping[str, Sequence[Measure]]) -> Comparison:
    """Compare results of one scorer, given by label.

    A table is read for its headline, the first measure, and everything else is many tests at once. The headline's
    p-values are therefore corrected for the number of results, the others together for results and measures.

    UserError if a result has no measure, they have none in common, or their items or gold answers differ.
    """
    for label, measures in results.items():
        if not measures:
            raise UserError(
                f"{label}: {bench} has scores, but none item by item, so there is nothing to compare",
                remedy="read its tables.md; openpi2 has them of schemata, states, complete and salience",
            )
    by_label = {label: {m.name: m for m in measures} for label, measures in results.items()}
    first = next(iter(by_label.values()))
    names = [name for name in first if all(name in ms for ms in by_label.values())]
    if not names:
        raise UserError(
            f"{bench}: {' and '.join(results)} have no measure in common",
            remedy="compare results of one system, of the same task and options",
        )
    _check_same_items(bench, {label: ms[names[0]] for label, ms in by_label.items()})
    same_items = [name for name in names if len({frozenset(ms[name].counts) for ms in by_label.values()}) == 1]
    rows = []
    for name in same_items:
        base, n = first[name], len(first[name].counts)
        for label, ms in by_label.items():
            score, pair = ms[name].interval, ([m.counts[item] for item in base.counts] for m in (base, ms[name]))
            change = None if ms is first else paired_counts(base.form, *pair)
            tests = (None,) * 4 if change is None else (change.mean, change.low, change.high, change.p_value)
            rows.append((name, base.unit, label, n, n, score.mean, score.low, score.high, *tests))
    scores = DataFrame(rows, columns=["measure", "unit", "run", *NUMBERS])
    all_names = dict.fromkeys(name for ms in by_label.values() for name in ms)
    left_out = tuple(name for name in all_names if name not in same_items)
    return Comparison(bench, tuple(results), joined([scores.assign(part="measures")]), left_out=left_out)


def _check_same_items(bench: str, headlines: Mapping[str, Measure]) -> None:
    (first, base), *rest = headlines.items()
    for label, measure in rest:
        strangers = sorted(base.counts.keys() ^ measure.counts.keys())
        if strangers:
            raise UserError(
                f"{bench}: {first} ({len(base.counts):,} {base.unit}) and {label} ({len(measure.counts):,}) are about "
                f"different {base.unit}: {len(strangers):,} are in one only, such as {strangers[0]!r}",
                remedy="predict the same ones with both; of runs with the same --max-samples and --seed",
            )
        if base.gold != measure.gold:
            raise UserError(
                f"{bench}: {first} and {label} were scored against different gold answers to the same {base.unit}",
                remedy="score both against the same file",
            )

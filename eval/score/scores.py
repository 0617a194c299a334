"""Scores of a run: a mean with its interval for each dataset × relation × format, and over all samples.

`overall` weighs every sample alike, so a large dataset dominates it; `macro` weighs every group alike. The models here
are the content of `scores.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, Field

from d2e_sft.config.decoding import RECORDED
from d2e_sft.data.chat_template import Form
from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import ENOUGH_ROWS, Subset
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from eval.score.confiqa import RATIO
from eval.score.extract import Mode
from eval.score.faithfulness import MEASURES
from eval.score.predictions import Prediction
from eval.score.statistics import Interval

if TYPE_CHECKING:
    from pandas import DataFrame

SCORES_FILE = "scores.json"
SCORE_AGAIN = (
    "restore the file, or score the run again with the same d2e eval, which decodes nothing twice; --accept-edited "
    "uses edited predictions"
)
GroupKey = tuple[str, str, str]  # dataset, relation, format
METRICS = ("mean", "exact_match", "f1")
MODES: tuple[Mode, ...] = get_args(Mode)


class GroupScores(BaseModel):
    """One dataset × relation × format, or all samples; fractions with 95 % intervals.

    Attributes:
        mean: mean of exact match and F1 of each sample, as the paper reports it.
        set_accuracy: mcq only; `acc` and `acc_norm` only for options by likelihood.
        extraction: shares of strict, lenient and no extraction.
        ambiguous: share of outputs that could mean several options, part of no extraction; not written if 0.
        label_shares, gold_shares: nli only: how often each label is predicted and gold; `other` is no label.
        events: means of the scores of answers of several events (ESTER), and their number `n`.
        confiqa: ConFiQA's measures (see `eval.score.confiqa`) of its conflict rows, and their number `n`.
        faithfulness: see `eval.score.faithfulness`; `n` answers, of which `lacking` have a context without the answer.
            Wrong refusals are of `answerable` ones, which leave out those and irrelevant rows.
    """

    dataset: str
    relation: str
    format: str
    n: int
    mean: Interval
    exact_match: Interval
    f1: Interval
    set_accuracy: Interval | None = None
    acc: Interval | None = None
    acc_norm: Interval | None = None
    extraction: dict[Mode, float]
    ambiguous: float = 0.0
    label_shares: dict[str, float] | None = None
    gold_shares: dict[str, float] | None = None
    events: dict[str, int | Interval] | None = None
    confiqa: dict[str, int | Interval] | None = None
    faithfulness: dict[str, int | Interval] | None = None

    @property
    def key(self) -> GroupKey:
        return self.dataset, self.relation, self.format


class AverageScores(BaseModel):
    """The mean over a number of groups: all of them, or those of a relation."""

    relation: str | None = None
    groups: int
    mean: float
    exact_match: float
    f1: float


class SubsetScores(BaseModel):
    """One subset of a dataset: how the context relates to the habit, the usual answer without it.

    Attributes:
        accuracy: Share of correct answers by exact match (mcq: of the sets; chat: the output contains one). On
            conflict rows, where the habit is wrong, this measures adoption of the context, on aligned rows agreement.
        mean: Mean of exact match and F1 of each sample.
        with_habit: Number of rows that name the habit. The fields below are about these rows; aligned rows lack them,
            because there the habit is the accepted answer.
        habit_rate: Share of answers that are the habit.
        contains: Conflict rows only: shares of outputs that contain only an accepted answer, only the habit, both or
            neither.
        memorisation_ratio: Conflict rows only: P_o / (P_s + P_o) of Zhou et al. (2023). P_o and P_s are the shares of
            outputs that contain the habit and an accepted answer. None if no output contains either.
    """

    n: int
    accuracy: Interval
    mean: Interval
    with_habit: int = 0
    habit_rate: Interval | None = None
    contains: dict[str, float] | None = None
    memorisation_ratio: Interval | None = None


class DatasetSubsets(BaseModel):
    """A dataset's subsets, or the plain average of several datasets; see `eval.score.frame.by_subset`.

    `gap` is the habit gap, accuracy on aligned rows − accuracy on conflict rows, if there are both. A model that uses
    the context has none; one that answers from habit is right only on aligned rows. `balanced` is the mean of the two.
    """

    dataset: str
    subsets: dict[Subset, SubsetScores]
    gap: Interval | None = None
    balanced: Interval | None = None

    @property
    def sizes(self) -> dict[Subset, int]:
        return {name: scores.n for name, scores in self.subsets.items()}


def headline(parts: Sequence[Mapping[Any, int]]) -> int:
    """Return which of several parts, given by the sizes of their subsets, is reported first.

    This is the last part with aligned and conflict rows (the average, if there is one), else the last one with
    conflict rows, else the last one. Subsets of 20 rows or more come first.
    """
    for least in (ENOUGH_ROWS, 1):
        for names in (("aligned", "conflict"), ("conflict",)):
            fitting = [place for place, part in enumerate(parts) if all(part.get(name, 0) >= least for name in names)]
            if fitting:
                return fitting[-1]
    return len(parts) - 1


class Scores(BaseModel):
    """Scores of predictions: over all samples, over groups alike, by relation and by group; subsets of tagged rows."""

    overall: GroupScores
    macro: AverageScores | None = None
    relations: list[AverageScores] = Field(default_factory=list)
    groups: list[GroupScores]
    subsets: list[DatasetSubsets] = Field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """Return plain JSON, without the fields that are not set."""
        return self.model_dump(exclude_unset=True)


class ScoredBenchmark(BaseModel):
    name: str
    file: str
    sha256: str
    suite: str | None = None


class Timed(BaseModel):
    """How many samples were timed, and the seconds that they took together in one process."""

    samples: int
    seconds: float


class EvaluationFacts(BaseModel):
    """What was decoded and how.

    Attributes:
        answer: `generate`, or `likelihood` if options were scored, with the length to `normalise` by.
        without_options: Rows that were left out because they have no options to score.
        alpha: The debias ratio; None with another decoder than `d2e`.
        decoder: Another decoder, with its options; None: `d2e`, or plain if α is 0.
        plausibility: The cut-off; 0 allows all tokens and is not written.
        num_beams: Beams of plain decoding; 1 is not written.
        engine: Several names if the run was resumed with another one; None if answers were only scored.
        prompt_set: Names of the prompt sets that worded the rows.
        prompt_set_given: Name of the prompt set that was chosen, or the file of a custom one.
        lacking: Datasets of the suite that its build could not read.
        subset: `per_group`, `seed` and `of`, if only some samples were drawn.
        tagged_by: Models whose habits the rows' subsets are about; empty, and not written, for other subsets.
        truncated: Contexts that were cut to fit the model.
        resumed: Answers of earlier runs; `seconds` and `environment` are of the last one.
        timed: By relation; empty if batches were not decoded one after another, as with vLLM.
    """

    model: str
    answer: str = "generate"
    normalise: str | None = None
    without_options: int = 0
    alpha: float | None
    decoder: str | None = None
    plausibility: float = 0.0
    num_beams: int = 1
    setting: Setting = "zero_shot"
    form: Form = "chat"
    engine: str | None = None
    engine_counts: dict[str, int] = Field(default_factory=dict)
    prompt_set: str
    prompt_set_given: str | None = None
    max_new_tokens: int | None = None
    bench: ScoredBenchmark
    lacking: list[str] = Field(default_factory=list)
    subset: dict[str, Any] | None = None
    demonstrations: dict[str, Any] | None = None
    bad_rows: int = 0
    empty_contexts: int = 0
    tagged_by: list[str] = Field(default_factory=list)
    truncated: int = 0
    resumed: int = 0
    seconds: float | None = None
    timed: dict[str, Timed] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)

    @property
    def decoding(self) -> dict[str, Any]:
        return self.model_dump(include={*RECORDED, "num_beams"}, exclude_unset=True)


class RunScores(Scores, EvaluationFacts):
    """The content of `scores.json`; pydantic puts the last base's fields first, so facts precede scores."""


def write_scores(folder: Path, content: Mapping[str, Any], files: Iterable[str]) -> None:
    """Write `FOLDER/scores.json`, with the checksums of its content and of the folder's files that belong to it."""
    write_json(folder / SCORES_FILE, with_checksums(content, [folder / name for name in files]))


def read_scores(path: Path) -> RunScores:
    """Read a `scores.json` of rows; UserError if it, or its predictions, are damaged or were edited."""
    return read_results(RunScores, path, "the scores of a run", SCORE_AGAIN)


def group_of(prediction: Prediction) -> GroupKey:
    return prediction.dataset, prediction.relation, prediction.format


def score_predictions(predictions: Sequence[Prediction], *, seed: int = 0) -> Scores:
    """Score predictions, with 95 % intervals; UserError if there is no prediction to score."""
    from eval.score import frame as table  # pandas takes half a second

    if not predictions:
        raise UserError("no prediction to score; expected at least one")
    frame = table.frame_of({"": dict(enumerate(predictions))})
    samples = table.samples_of(frame)
    groups = samples.assign(stratum=0)[["row", *table.GROUP, "stratum"]]
    all_rows = groups.assign(**dict.fromkeys(table.GROUP, table.ALL))
    labels = [name for name in frame.measure.unique() if name.startswith(("says ", "gold "))]
    shares = [*MODES, "ambiguous", *labels]
    extra = [name for name in frame.measure.unique() if name.startswith(("events ", "confiqa "))]
    metrics = [*METRICS, "set_accuracy", "acc", "acc_norm", *extra, *MEASURES]
    overall, *scored = [
        _group(key, cells)
        for grouping in (all_rows, groups)
        for key, cells in table.together(
            table.means(frame, grouping, metrics, plain=shares, seed=seed),
            table.ratios(frame, grouping, *RATIO, seed=seed),
        ).groupby(table.GROUP, sort=False)
    ]
    relations = dict.fromkeys(group.relation for group in scored)
    scores = Scores(
        overall=overall,
        macro=_average(scored),
        relations=[_average([g for g in scored if g.relation == name], relation=name) for name in relations],
        groups=scored,
    )
    if samples.subset.notna().any():
        scores.subsets = _subsets(frame, table.by_subset(samples), seed)
    return scores


def _group(key: GroupKey, frame: DataFrame) -> GroupScores:
    dataset, relation, fmt = key
    cells = {cell.measure: cell for cell in frame.itertuples()}
    n = int(cells["mean"].rows)
    score = {name: Interval(cell.mean, cell.low, cell.high) for name, cell in cells.items()}
    names = (*METRICS, "set_accuracy", "acc", "acc_norm")
    fields: dict[str, Any] = {name: score[name] for name in names if name in cells and cells[name].n == n}
    if fmt == "nli":
        shares = {name: cell.mean for name, cell in cells.items()}
        fields["label_shares"] = {name[5:]: share for name, share in shares.items() if name.startswith("says ")}
        fields["gold_shares"] = {name[5:]: share for name, share in shares.items() if name.startswith("gold ")}
    for field, first in (("events", "token_f1"), ("confiqa", "P_c")):
        intervals = {name.removeprefix(f"{field} "): score[name] for name in cells if name.startswith(f"{field} ")}
        if intervals:
            fields[field] = {"n": int(cells[f"{field} {first}"].n), **intervals}
    if "contained" in cells:
        counted = {"n": "contained", "lacking": "refusal", "answerable": "answered"}
        counts = {key: int(cells[name].n) for key, name in counted.items() if name in cells}
        means = {name: score[name] for name in MEASURES if name in cells}
        fields["faithfulness"] = {"n": 0, "lacking": 0, **counts, **means}
    fields["extraction"] = {mode: cells[mode].mean for mode in MODES}
    if cells["ambiguous"].mean:
        fields["ambiguous"] = cells["ambiguous"].mean
    return GroupScores(dataset=dataset, relation=relation, format=fmt, n=n, **fields)


def _average(groups: Sequence[GroupScores], **relation: str) -> AverageScores:
    means = {metric: sum(getattr(group, metric).mean for group in groups) / len(groups) for metric in METRICS}
    return AverageScores(**relation, groups=len(groups), **means)


def _subsets(frame: DataFrame, groups: DataFrame, seed: int) -> list[DatasetSubsets]:
    from eval.score import frame as table

    scores = table.subset_means(frame, groups, ["mean", "habit_rate"], seed=seed)
    cells = {(cell.dataset, cell.subset, cell.measure): cell for cell in scores.itertuples()}
    score = {name: Interval(cell.mean, cell.low, cell.high) for name, cell in cells.items()}
    datasets: list[DatasetSubsets] = []
    for (dataset, subset), _ in groups.groupby(["dataset", "subset"], sort=False):
        if not datasets or datasets[-1].dataset != dataset:
            datasets.append(DatasetSubsets(dataset=dataset, subsets={}))
        if subset in (table.GAP, table.BALANCED):
            setattr(datasets[-1], subset, score[dataset, subset, "accuracy"])
            continue
        names = [name for name in ("accuracy", "mean", "habit_rate") if (dataset, subset, name) in cells]
        fields: dict[str, Any] = {name: score[dataset, subset, name] for name in names}
        if "habit_rate" in fields:
            fields["with_habit"] = int(cells[dataset, subset, "habit_rate"].n)
            if subset == "conflict":
                fields["contains"] = {name: cells[dataset, subset, name].mean for name in table.CELLS}
                fields["memorisation_ratio"] = score.get((dataset, subset, "memorisation_ratio"))
        rows = int(cells[dataset, subset, "accuracy"].rows)
        datasets[-1].subsets[subset] = SubsetScores(n=rows, **fields)
    return datasets

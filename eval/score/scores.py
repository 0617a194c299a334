"""Scores of a run: a mean with its interval for each dataset × relation × format, and over all samples.

`overall` weighs every sample alike, so a large dataset dominates it; `macro` weighs every group alike. The models here
are the content of `scores.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field

from d2e_sft.config.decoding import RECORDED
from d2e_sft.data.chat_template import Form
from d2e_sft.data.prompts import Setting
from d2e_sft.data.sample import NLI_LABELS
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from eval.score.extract import Mode
from eval.score.faithfulness import FaithfulnessScores, score_faithfulness
from eval.score.metrics import EventScores
from eval.score.predictions import Prediction
from eval.score.statistics import Interval, bootstrap_average
from eval.score.subsets import DatasetSubsets, score_subsets

SCORES_FILE = "scores.json"
SCORE_AGAIN = (
    "restore the file, or score the run again with the same d2e eval, which decodes nothing twice; --accept-edited "
    "uses edited predictions"
)
GroupKey = tuple[str, str, str]  # dataset, relation, format
ALL: GroupKey = ("all", "all", "all")
METRICS = ("mean", "exact_match", "f1")
MODES: tuple[Mode, ...] = get_args(Mode)


class EventGroupScores(BaseModel):
    """The means of `EventScores` over the `n` samples of a group that have them; fractions with 95 % intervals."""

    n: int
    token_f1: Interval
    event_f1: Interval
    hit_at_1: Interval
    exact_match: Interval


class GroupScores(BaseModel):
    """One dataset × relation × format, or all samples; fractions with 95 % intervals.

    Attributes:
        mean: mean of exact match and F1 of each sample, as the paper reports it.
        set_accuracy: mcq only; `acc` and `acc_norm` only for options by likelihood.
        extraction: shares of strict, lenient and no extraction.
        label_shares, gold_shares: nli only: how often each label is predicted and gold; `other` is no label.
        events: scores of answers of several events (ESTER).
        faithfulness: qa and chat only: whether answers keep to their contexts.
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
    label_shares: dict[str, float] | None = None
    gold_shares: dict[str, float] | None = None
    events: EventGroupScores | None = None
    faithfulness: FaithfulnessScores | None = None

    @property
    def key(self) -> GroupKey:
        """(dataset, relation, format)."""
        return self.dataset, self.relation, self.format


class AverageScores(BaseModel):
    """The mean over a number of groups: all of them, or those of a relation."""

    relation: str | None = None
    groups: int
    mean: float
    exact_match: float
    f1: float


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
    """The benchmark: the name of the results' folder, the file, and its suite."""

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
        engine: Name of the engine, several if the run was resumed with another one; None if answers were only scored.
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
        """The record of the decoding; see `DecodingConfig.record` and `describe`."""
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
    """Return the (dataset, relation, format) that a prediction is scored under."""
    return prediction.dataset, prediction.relation, prediction.format


def by_relation(groups: Collection[GroupKey]) -> dict[str, list[GroupKey]]:
    """Group keys by relation, in order of appearance."""
    return {relation: [key for key in groups if key[1] == relation] for _, relation, _ in groups}


def score_predictions(predictions: Sequence[Prediction], *, seed: int = 0) -> Scores:
    """Score predictions, with 95 % intervals; UserError if there is no prediction to score."""
    if not predictions:
        raise UserError("no prediction to score; expected at least one")
    members: dict[GroupKey, list[Prediction]] = {}  # in order of appearance
    for prediction in predictions:
        members.setdefault(group_of(prediction), []).append(prediction)
    groups = {key: _score(key, own, seed) for key, own in members.items()}
    relations = by_relation(groups).items()
    subsets = score_subsets(predictions, seed=seed)
    return Scores(
        overall=_score(ALL, predictions, seed),
        macro=_average(list(groups.values())),
        relations=[_average([groups[key] for key in keys], relation=relation) for relation, keys in relations],
        groups=list(groups.values()),
        **({"subsets": subsets} if subsets else {}),
    )


def _score(key: GroupKey, predictions: Sequence[Prediction], seed: int) -> GroupScores:
    dataset, relation, fmt = key
    values = {metric: [getattr(prediction, metric) for prediction in predictions] for metric in METRICS}
    if fmt == "mcq":
        values["set_accuracy"] = [prediction.set_accuracy or 0.0 for prediction in predictions]
    if all(prediction.likelihoods for prediction in predictions):
        values |= {name: [getattr(prediction, name) for prediction in predictions] for name in ("acc", "acc_norm")}
    own: dict[str, Any] = {metric: bootstrap_average([scores], seed=seed) for metric, scores in values.items()}
    if fmt == "nli":
        answers = [p.answer[0] if p.parsed and len(p.answer) == 1 else "other" for p in predictions]
        shares = {label: answers.count(label) / len(answers) for label in (*NLI_LABELS, "other")}
        own |= {"label_shares": shares, "gold_shares": gold_shares(predictions)}
    if scored := [p.events for p in predictions if p.events]:
        events = {name: [getattr(one, name) for one in scored] for name in EventScores.model_fields}
        means = {name: bootstrap_average([column], seed=seed) for name, column in events.items()}
        own["events"] = EventGroupScores(n=len(scored), **means)
    if faithful := score_faithfulness(predictions, seed=seed):
        own["faithfulness"] = faithful
    own["extraction"] = {mode: sum(p.extraction == mode for p in predictions) / len(predictions) for mode in MODES}
    return GroupScores(dataset=dataset, relation=relation, format=fmt, n=len(predictions), **own)


def gold_shares(predictions: Sequence[Prediction]) -> dict[str, float]:
    """Return the share of each nli label among the gold answers."""
    return {label: sum(p.gold == [label] for p in predictions) / len(predictions) for label in NLI_LABELS}


def _average(groups: Sequence[GroupScores], **relation: str) -> AverageScores:
    means = {metric: sum(getattr(group, metric).mean for group in groups) / len(groups) for metric in METRICS}
    return AverageScores(**relation, groups=len(groups), **means)

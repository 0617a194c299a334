"""Statistics of a data set: counts, lengths of the three views, labels, and baselines without the context."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from d2e_sft.config.objectives import VIEWS, View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import FORMATS, NLI_LABELS, RELATIONS, EventSample, Split
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_tokenizer
from data_builders.dataset.manifest import describe_refinement
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.context_free import ContextFree, accuracy_by_places, hypothesis_alone, require_sklearn
from data_builders.raw.source import SPLITS

WORDS = "words"
_BATCH = 1_000

# Samples of one view → the length of each one's prompt.
Measure = Callable[[Sequence[EventSample], View], list[int]]


class Group(NamedTuple):
    """Key of rows that are described together; `data` is the name of their set."""

    data: str
    dataset: str
    split: Split


@dataclass(frozen=True)
class Lengths:
    """Lengths of one view's prompts; `p5` and `p95` are percentiles."""

    n: int
    mean: float
    p5: float
    median: float
    p95: float
    longest: int


@dataclass
class GroupStats:
    """Statistics of one group.

    Attributes:
        counts: (relation, format) → rows.
        lengths: View → lengths of its prompts, for views that some row has.
        labels: nli label → rows; empty without nli rows.
        refinement: Share of words kept and rows unchanged, as in the manifest (`describe_refinement`).
        context_free: Baselines from the hypothesis, for nli rows.
        by_places: View → accuracy of a classifier for nli rows; None for too few rows. It sees the places of the
            hypothesis' words in that view's context.
    """

    group: Group
    counts: dict[tuple[str, str], int]
    lengths: dict[View, Lengths] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    refinement: dict[str, Any] = field(default_factory=dict)
    context_free: ContextFree | None = None
    by_places: dict[View, float | None] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **self.group._asdict(),
            "rows": self.rows,
            "counts": [{"relation": relation, "format": fmt, "rows": n} for (relation, fmt), n in self.counts.items()],
            "prompt_lengths": {view: asdict(lengths) for view, lengths in self.lengths.items()},
            "nli_labels": self.labels,
            **self.refinement,
            "hypothesis_alone": asdict(self.context_free) if self.context_free else None,
            "hypothesis_and_places_of_its_words": self.by_places,
        }


@dataclass
class Stats:
    """All groups, by set, split and dataset; lengths are in `unit`, `tokens` of the tokenizer or `words`."""

    tokenizer: str
    unit: str
    groups: list[GroupStats]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer,
            "unit": self.unit,
            "rows": self.rows,
            "groups": [group.to_json() for group in self.groups],
        }


def compute_stats(sets: Sequence[SampleSet], *, tokenizer: str, prompt_set: str = "default", seed: int = 0) -> Stats:
    """Return statistics of every set, dataset and split.

    Args:
        tokenizer: a name for `d2e_sft.model.loading`, or `words`.
        prompt_set: wording of the prompts that are measured.
        seed: of the folds of the hypothesis-only baseline.

    Raises:
        UserError: no such tokenizer or prompt set, or nli rows without scikit-learn.
    """
    if any(sample.format == "nli" for data in sets for sample in data.samples):
        require_sklearn()
    measure = _measure(tokenizer, prompt_set)
    members: dict[Group, list[EventSample]] = defaultdict(list)
    for data in sets:
        for sample in data.samples:
            members[Group(data.name, sample.dataset, sample.split)].append(sample)
    names = [data.name for data in sets]
    # Sorted, since the rows of a drawn set are shuffled.
    order = sorted(members, key=lambda one: (names.index(one.data), SPLITS.index(one.split), one.dataset))
    groups = [
        _describe(group, members[group], measure, seed)
        for group in tqdm(order, desc="statistics", unit="dataset", disable=None, leave=False)
    ]
    return Stats(tokenizer, "words" if tokenizer == WORDS else "tokens", groups)


def _measure(tokenizer: str, prompt_set: str) -> Measure:
    wording = load_prompt_set(prompt_set)
    if tokenizer == WORDS:
        return lambda samples, view: [
            sum(len(message["content"].split()) for message in wording.messages(sample, view)) for sample in samples
        ]
    loaded, encoder_decoder = load_tokenizer(tokenizer)
    encoder = ViewEncoder(loaded, wording, VIEWS, encoder_decoder=encoder_decoder)
    return lambda samples, view: [len(ids) for ids in encoder.all_prompt_ids(samples, view)]


def _describe(group: Group, samples: Sequence[EventSample], measure: Measure, seed: int) -> GroupStats:
    counts = Counter[tuple[str, str]]((sample.relation, sample.format) for sample in samples)
    kinds = [(relation, fmt) for relation in RELATIONS for fmt in FORMATS if counts[relation, fmt]]
    stats = GroupStats(group, {kind: counts[kind] for kind in kinds})
    for view in VIEWS:
        shown = [sample for sample in samples if view != "refined" or sample.refined_context is not None]
        if shown:
            batches = (shown[start : start + _BATCH] for start in range(0, len(shown), _BATCH))
            found = np.array([length for batch in batches for length in measure(batch, view)])
            p5, median, p95 = map(float, np.percentile(found, [5, 50, 95]))
            mean = round(float(found.mean()), 1)
            stats.lengths[view] = Lengths(len(found), mean, p5, median, p95, int(found.max()))
    stats.refinement = describe_refinement(samples)
    if nli := [sample for sample in samples if sample.format == "nli"]:
        labels = Counter(sample.answers[0] for sample in nli)
        stats.labels = {label: labels[label] for label in NLI_LABELS}
        stats.context_free = hypothesis_alone(nli, seed)
        stats.by_places = {"original": accuracy_by_places(nli, [sample.context for sample in nli], seed)}
        refined = [sample.refined_context for sample in nli if sample.refined_context is not None]
        if len(refined) == len(nli):
            stats.by_places["refined"] = accuracy_by_places(nli, refined, seed)
    return stats

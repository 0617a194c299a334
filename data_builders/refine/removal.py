"""Remove spans of a context, the most superfluous first, as long as the answer's score does not fall.

This is leave-one-out attribution of the context: each span's worth is what the score loses without it. ContextCite
(Cohen-Wang et al., 2024) estimates the same from random ablations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from pydantic import BaseModel, Field

from data_builders.text.clauses import Span, with_needed

Kept = frozenset[int]  # numbers of the spans that stay
Score = Callable[[Sequence[Kept]], list[float]]  # contexts → the answer's score with each; an empty one is no context


class Limits(BaseModel):
    """When a context is shortened, and how far.

    Attributes:
        margin: Nats by which the whole context must raise the answer's score above that without a context.
        loss: Nats by which the score may fall below its best value so far.
        least_share: Share of the words that stays at least.
    """

    margin: float = Field(2.0, ge=0)
    loss: float = Field(1.0, ge=0)
    least_share: float = Field(0.35, ge=0, le=1)


class SpannedContext(BaseModel):
    """A context as spans.

    Attributes:
        words: The number of words of each span.
        relevance: The relevance of each span to the question.
        protected: Numbers of the spans that stay, with all that they need.
    """

    spans: list[Span]
    words: list[int]
    relevance: list[float]
    protected: list[int]


def remove_spans(context: SpannedContext, score: Score, limits: Limits) -> Kept | None:
    """Return the spans that stay; None if the whole context does not raise the score by the margin.

    Whole sentences go first, then spans inside the others. A round scores the context without each of them. Those
    that may go do so together, the least relevant first, as many as the score allows.
    """
    known: dict[Kept, float] = {}  # so that nothing is scored twice and rounded otherwise

    def values(sets: Sequence[Kept]) -> dict[Kept, float]:
        new = [kept for kept in dict.fromkeys(sets) if kept not in known]
        known.update(zip(new, score(new) if new else [], strict=True))
        return {kept: known[kept] for kept in sets}

    def fits(rest: Kept) -> bool:
        return bool(rest) and sum(context.words[number] for number in rest) >= limits.least_share * sum(context.words)

    def rank(rest: Kept) -> tuple[float, float]:
        return max(context.relevance[number] for number in kept - rest), -known[rest]

    kept, nothing = frozenset(range(len(context.spans))), frozenset[int]()
    best = values([nothing, kept])[kept]
    if best - known[nothing] < limits.margin:
        return None
    for units in _levels(context):
        while True:
            single = values([kept - unit for unit in units if unit & kept and fits(kept - unit)])
            going = sorted((rest for rest in single if single[rest] >= best - limits.loss), key=rank)
            if not going:
                break
            # Spans that may go one by one may matter together.
            several = values([*accumulate(going, lambda rest, one: rest & one if fits(rest & one) else rest)])
            kept = next(rest for rest in reversed(several) if several[rest] >= best - limits.loss)
            best = max(best, known[kept])
    return kept


def _levels(context: SpannedContext) -> list[list[Kept]]:
    """Sets of spans that go together: whole sentences, then each span with those that need it."""
    spans, every = context.spans, range(len(context.spans))
    sentences = dict.fromkeys(span.sentence for span in spans)
    whole = [frozenset(n for n in every if spans[n].sentence == sentence) for sentence in sentences]
    single = [frozenset(n for n in every if one in with_needed(spans, [n])) for one in every]
    stay = with_needed(spans, context.protected)
    return [[unit for unit in units if not unit & stay] for units in (whole, single)]

"""Spans go as long as the score holds: hand-worked contexts, and what holds of any context."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from data_builders.refine.likelihood import Kept, Limits, Score, SpannedContext, remove_spans
from data_builders.text.clauses import Span, with_needed

LIMITS = Limits(margin=2, loss=1, least_share=0)


def context(sentences: Sequence[int], protected: Sequence[int] = (), **needs: tuple[int, ...]) -> SpannedContext:
    """Spans of two words each, by the number of their sentence; `s1=(0,)`: span 1 needs span 0."""
    spans = [Span(i, i + 1, one, "main", needs.get(f"s{i}", ())) for i, one in enumerate(sentences)]
    even = [2] * len(spans)
    return SpannedContext(spans=spans, words=even, relevance=[0.0] * len(spans), protected=list(protected))


def worth(*nats: float, without: float = -10) -> Score:
    """Each span adds its worth to the score without a context."""
    return lambda sets: [without + sum(nats[number] for number in kept) for kept in sets]


@pytest.mark.parametrize(
    ("given", "nats", "changes", "stays"),
    [
        (context([0, 0, 1, 2]), (9, 0.1, 0.1, 0.1), {}, {0}),
        (context([0, 1, 2]), (0.6, 0.6, 9), {}, {1, 2}),  # 0.6 + 0.6 is more than the loss
        (context([0, 1, 2]), (0.6, 0.6, 9), {"loss": 1.5}, {2}),
        (context([0, 1, 2]), (9, -5, 0.9), {}, {0}),  # a span that misleads
        (context([0, 0, 0]), (9, 0, 0), {"least_share": 0.5}, {0, 2}),  # of 6 words 3 must stay
        (context([0, 1, 2], protected=[1]), (9, 0, 0), {}, {0, 1}),
        (context([0, 0, 0], s1=(0,)), (0, 9, 0), {}, {0, 1}),  # what a span needs stays with it
        (context([0, 0, 0], s1=(0,)), (0, 0, 9), {}, {2}),
        (context([0, 1]), (1, 0.9), {}, None),  # the context is worth less than the margin
        (context([0, 1]), (1, 0.9), {"margin": 1.9}, {0}),
        (context([0, 1]), (0, 0), {"margin": 0}, {1}),  # never nothing
    ],
)
def test_superfluous_spans_go(
    given: SpannedContext, nats: tuple[float, ...], changes: dict[str, float], stays: set[int] | None
) -> None:
    assert remove_spans(given, worth(*nats), LIMITS.model_copy(update=changes)) == stays


def test_two_spans_that_say_the_same_do_not_both_go() -> None:
    def either(sets: Sequence[Kept]) -> list[float]:
        return [0.0 if kept & {0, 1} else -10.0 for kept in sets]

    assert remove_spans(context([0, 1, 2]), either, LIMITS) in ({0}, {1})


def test_no_context_is_scored_twice_as_a_second_score_may_be_rounded_otherwise() -> None:
    seen = list[Kept]()

    def once(sets: Sequence[Kept]) -> list[float]:
        seen.extend(sets)
        return worth(9, 0, 0, 0.6, 0.6)(sets)

    assert remove_spans(context([0, 1, 1, 2, 2]), once, LIMITS.model_copy(update={"least_share": 0.7})) is not None
    assert len(seen) == len(set(seen))


def test_the_least_relevant_go_first_where_not_all_may() -> None:
    given = context([0, 1, 2, 3]).model_copy(update={"relevance": [0.0, 3.0, 1.0, 2.0]})
    kept = remove_spans(given, worth(9, 0, 0.3, 0.1), LIMITS.model_copy(update={"least_share": 0.5}))
    assert kept == {0, 1}


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_context_the_limits_hold_and_nothing_more_can_go(seed: int) -> None:
    generator = random.Random(seed)
    count = generator.randint(1, 9)
    sentences = sorted(generator.randrange(3) for _ in range(count))
    needs = {
        f"s{i}": (i - 1,) for i in range(1, count) if sentences[i] == sentences[i - 1] and generator.random() < 0.4
    }
    given = context(sentences, generator.sample(range(count), generator.randrange(min(count, 3))), **needs)
    given.words = [generator.randint(1, 9) for _ in range(count)]
    given.relevance = [generator.random() for _ in range(count)]
    nats = [generator.choice([-1, 0, 0.2, 0.6, 4]) for _ in range(count)]
    limits = Limits(margin=0, loss=0.5, least_share=generator.choice([0, 0.35, 0.8]))
    kept = remove_spans(given, worth(*nats), limits)
    if kept is None:
        assert sum(nats) < 0
        return
    least = limits.least_share * sum(given.words)
    assert kept == with_needed(given.spans, kept) >= with_needed(given.spans, given.protected)
    assert sum(given.words[number] for number in kept) >= least
    assert sum(nats[number] for number in kept) >= sum(nats) - 0.5
    for one in kept - with_needed(given.spans, given.protected):
        rest = {number for number in kept if one not in with_needed(given.spans, [number])}
        short = sum(given.words[number] for number in rest) < least or not rest
        protects = not rest >= with_needed(given.spans, given.protected)
        highest = sum(value for value in nats if value > 0)  # of any path
        assert short or protects or sum(nats[number] for number in rest) < highest - 0.5

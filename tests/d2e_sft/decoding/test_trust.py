"""GRD from step to step, worked by hand: what an answer trusts depends on its first disagreement."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from d2e_sft.decoding import DecodingConfig
from d2e_sft.decoding.choice import Head, RowStates, TokenChoice


def _logs(*probabilities: float) -> list[float]:
    return [math.log(each) for each in probabilities]


# Views of a vocabulary of three tokens: sure of token 1, then of token 0 with more entropy, and with less.
SURE, LESS_SURE, SURER = _logs(0.2, 0.7, 0.1), _logs(0.51, 0.25, 0.24), _logs(0.9, 0.05, 0.05)


def _steps(views: Sequence[tuple[list[float], list[float]]], depth: float = 0.75) -> list[int]:
    """The tokens that GRD takes where an answer meets these pairs of views, one after the other."""
    choose = TokenChoice(DecodingConfig(decoder=f"grd:depth={depth}"))
    head = Head(lambda logits: logits, linear=False)
    states = [RowStates(torch.tensor([o]), torch.tensor([i]), torch.tensor([0])) for o, i in views]
    return [int(choose(state, head, torch.zeros(1), [0])) for state in states]


def test_grd_trusts_from_the_first_disagreement_on_the_view_that_was_surer_there() -> None:
    # The habit (the second view) is surer at the first disagreement, so it is followed where it is less sure, too.
    assert _steps([(SURE, SURE), (SURE, SURER), (SURE, LESS_SURE), (SURE, SURE)]) == [1, 0, 0, 1]
    # The context is surer at first, so the surer habit of later steps is not followed.
    assert _steps([(SURE, LESS_SURE), (SURE, SURER), (SURER, SURE)]) == [1, 1, 0]
    # More than half of the probability alone is not enough, nor is less entropy alone.
    flat, two = _logs(0.4, 0.3, 0.3), _logs(0.495, 0.499, 0.006)
    assert _steps([(two, LESS_SURE), (SURE, SURER)]) == [1, 1]
    assert _steps([(flat, two), (SURER, SURE)]) == [0, 0]


def test_the_depth_of_grd_is_how_far_it_goes_past_the_tie_of_the_two_tokens() -> None:
    # The third token is the second choice of both views: a mixture near the tie takes it, one near the habit does not.
    context, habit = _logs(0.5, 0.001, 0.499), _logs(0.001, 0.6, 0.399)
    assert _steps([(context, habit)], depth=0.05) == [2]
    assert _steps([(context, habit)], depth=0.95) == [1]

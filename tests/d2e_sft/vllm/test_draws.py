"""Draws of a pair: distributed as they should be, and the same for the same seed and token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from d2e_sft.vllm.draws import Draw

VOCAB = 12
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2


def _drawn(draw: Draw, position: int) -> int:
    logits = LOGITS.clone()
    draw.perturb(logits, position)
    return int(logits.argmax())


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 6, "top_p": 0.6}])
def test_draws_have_the_distribution_that_transformers_gives(options: dict[str, Any]) -> None:
    scores = TemperatureLogitsWarper(0.8)(None, LOGITS[None].clone())
    if "min_p" in options:
        scores = MinPLogitsWarper(options["min_p"])(None, scores)
    if "top_k" in options:
        scores = TopKLogitsWarper(options["top_k"])(None, scores)
    if "top_p" in options:
        scores = TopPLogitsWarper(options["top_p"])(None, scores)
    expected = scores[0].softmax(-1)
    draws = 6000
    counts = torch.zeros(VOCAB)
    for position in range(draws):
        counts[_drawn(Draw(0.8, seed=5, **options), position)] += 1
    assert (counts[expected == 0] == 0).all()
    deviation = (counts / draws - expected).abs()
    # Five standard deviations of a share: one seed in a million fails by chance, and this one does not.
    assert (deviation <= 5 * (expected * (1 - expected) / draws).sqrt() + 1e-9).all()


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    first = [_drawn(Draw(1.0, seed=1), position) for position in range(50)]
    assert first == [_drawn(Draw(1.0, seed=1), position) for position in range(50)]
    assert first != [_drawn(Draw(1.0, seed=2), position) for position in range(50)]
    assert len(set(first)) > 3


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 2.0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Draw(**{"temperature": 1.0, "seed": 0, **options})

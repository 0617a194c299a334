"""What is logged of several micro-batches: means weighted as the loss is, shares of answer tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.metrics import ObjectiveMetrics

ALONE = SimpleNamespace(num_processes=1)


def sums(ce: float, kl: float, correct: int, *views: int) -> dict[str, torch.Tensor]:
    named = dict(zip(("plain_correct", "imagined_correct"), views, strict=False))
    return {name: torch.tensor(value) for name, value in {"ce": ce, "kl": kl, "correct": correct, **named}.items()}


def filled(d2e: D2ESection) -> ObjectiveMetrics:
    metrics = ObjectiveMetrics(d2e, {"ce": 1.0, "kl": 0.5}, torch.device("cpu"))
    # Two steps of one micro-batch: of 2 and of 8 answer tokens, each with the weight of a step.
    metrics.update(sums(6.0, 1.0, 1), torch.zeros(2), 30, scale=torch.tensor(1 / 2))
    metrics.update(sums(8.0, 0.0, 7, 4, 2), torch.zeros(8), 50, scale=torch.tensor(1 / 8))
    return metrics


def test_terms_are_means_of_steps_and_shares_are_of_answer_tokens() -> None:
    values, tokens = filled(D2ESection()).compute(ALONE)
    assert (values["ce"], values["kl"]) == pytest.approx(((3 + 1) / 2, (0.5 + 0) / 2))
    assert values["debiased_accuracy"] == pytest.approx(8 / 10)
    assert tokens == 80
    assert filled(D2ESection()).loss_of(values) == pytest.approx(2 + 0.5 * 0.25)


def test_single_views_count_where_they_were_projected() -> None:
    values, _ = filled(D2ESection()).compute(ALONE)
    assert (values["plain_accuracy"], values["bias_share"]) == pytest.approx((4 / 8, 2 / 8))
    assert "bias_share" not in filled(D2ESection(debias=False)).compute(ALONE)[0]


def test_without_any_they_are_left_out_and_what_was_read_is_not_counted_again() -> None:
    metrics = filled(D2ESection())
    metrics.compute(ALONE)
    metrics.update(sums(6.0, 1.0, 1), torch.zeros(2), 30)
    values, tokens = metrics.compute(ALONE)
    assert values == {"ce": 3.0, "kl": 0.5, "debiased_accuracy": 0.5}
    assert tokens == 30

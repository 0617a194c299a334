"""The logged values: terms are weighted like the loss, accuracies are shares of answer tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.metrics import ObjectiveMetrics

SINGLE = SimpleNamespace(num_processes=1)


def sums(ce: float, kl: float, *correct: int) -> dict[str, torch.Tensor]:
    named = {"ce": ce, "kl": kl, **dict(zip(("correct", "plain_correct", "imagined_correct"), correct, strict=True))}
    return {name: torch.tensor(value) for name, value in named.items()}


@pytest.mark.parametrize("debias", [True, False])
def test_terms_are_means_of_steps_and_accuracies_are_shares_of_answer_tokens(debias: bool) -> None:
    metrics = ObjectiveMetrics(D2ESection(debias=debias), {"ce": 1.0, "kl": 0.5}, torch.device("cpu"))
    # Two steps of one micro-batch: of 2 and of 8 answer tokens, each with the weight of a step.
    metrics.update(sums(6.0, 1.0, 1, 1, 0), torch.zeros(2), (30, 2, 1), scale=torch.tensor(1 / 2))
    metrics.update(sums(8.0, 0.0, 7, 4, 2), torch.zeros(8), (50, 3, 1), scale=torch.tensor(1 / 8))
    values, tokens = metrics.compute(SINGLE)
    expected = {
        "kl_rows": 2 / 5,
        "ce": (3 + 1) / 2,
        "kl": (0.5 + 0) / 2,
        "debiased_accuracy": 8 / 10,
        "plain_accuracy": 5 / 10,
    }
    assert values == pytest.approx({**expected, "bias_share": 2 / 10} if debias else expected)
    assert tokens == 80
    assert metrics.loss_of(values) == pytest.approx(2 + 0.5 * 0.25)
    metrics.update(sums(6.0, 1.0, 1, 0, 0), torch.zeros(2), (30, 2, 1))
    assert metrics.compute(SINGLE)[0]["ce"] == 3.0, "the sums were reset"

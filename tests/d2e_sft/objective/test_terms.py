"""The weights of answers, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.objective.terms import AnswerTokens


def test_an_answer_counts_one_minus_the_probability_of_its_content_without_the_context() -> None:
    # Three answers: content of ½ · ¼ after a token of the form, content of 0.9, and no content at all.
    log_p = torch.tensor([0.01, 0.5, 0.25, 0.9, 0.3], dtype=torch.float64).log()
    content, answers = torch.tensor([False, True, True, True, False]), torch.tensor([0, 0, 0, 3, 4])
    tokens = AnswerTokens(torch.arange(5), content, answers=answers).reweighted(log_p)
    assert tokens.weights is not None
    assert tokens.weights.tolist() == pytest.approx([0.875] * 3 + [0.1, 1.0])
    times = torch.tensor([2.0, 2.0, 2.0, 3.0, 0.5])
    tokens = AnswerTokens(torch.arange(5), content, times, answers).reweighted(log_p)
    assert tokens.weights is not None
    assert tokens.weights.tolist() == pytest.approx([1.75] * 3 + [0.3, 0.5])

"""The D²E objective against numbers worked by hand and against naive forms."""

from __future__ import annotations

import math

import pytest
import torch

from d2e_sft.loss import d2e_loss, debias

LOG = math.log


def test_cross_entropy_and_kl_of_a_three_token_vocabulary_worked_by_hand() -> None:
    # alpha = 0.5. The imagined logits are chosen so that o − α·im = (log 4, log 2, log 2) and
    # cr − α·im = (log 6, log 1, log 1): p = (1/2, 1/4, 1/4), q = (3/4, 1/8, 1/8).
    imagined = torch.tensor([[2.0, -4.0, 6.0]])
    original = torch.tensor([[LOG(4) + 1.0, LOG(2) - 2.0, LOG(2) + 3.0]])
    refined = torch.tensor([[LOG(6) + 1.0, LOG(1) - 2.0, LOG(1) + 3.0]])
    result = d2e_loss(original, torch.tensor([1]), imagined=imagined, refined=refined, alpha=0.5, kl_weight=2.0)
    ce = LOG(4)  # −log 1/4
    kl = 0.5 * LOG((1 / 2) / (3 / 4)) + 2 * 0.25 * LOG((1 / 4) / (1 / 8))  # KL(p‖q) = 0.1438 nats
    assert result.ce.item() == pytest.approx(ce, abs=1e-6)
    assert result.kl.item() == pytest.approx(kl, abs=1e-6)
    assert result.loss.item() == pytest.approx(ce + 2 * kl, abs=1e-6)
    assert result.correct.item() == 0


def test_the_other_kl_direction_worked_by_hand() -> None:
    original = torch.tensor([[LOG(2), 0.0, 0.0]])  # p = (1/2, 1/4, 1/4)
    refined = torch.tensor([[LOG(6), 0.0, 0.0]])  # q = (3/4, 1/8, 1/8)
    result = d2e_loss(original, torch.tensor([0]), refined=refined, kl_direction="refined_original")
    assert result.kl.item() == pytest.approx(0.75 * LOG(1.5) + 2 * 0.125 * LOG(0.5), abs=1e-6)  # KL(q‖p)
    assert result.correct.item() == 1


def test_without_imagined_and_refined_views_it_is_plain_cross_entropy() -> None:
    logits, targets = torch.randn(5, 7), torch.randint(7, (5,))
    result = d2e_loss(logits, targets, alpha=0.5)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert result.kl.item() == 0


@pytest.mark.parametrize("direction", ["original_refined", "refined_original"])
def test_gradients_equal_the_closed_forms(direction: str) -> None:
    torch.manual_seed(0)
    alpha, weight = 0.7, 1.3
    o, im, cr = (torch.randn(6, 11, dtype=torch.float64, requires_grad=True) for _ in range(3))
    targets = torch.randint(11, (6,))
    loss = d2e_loss(o, targets, imagined=im, refined=cr, alpha=alpha, kl_weight=weight, kl_direction=direction)  # type: ignore[arg-type]
    loss.loss.backward()
    with torch.no_grad():
        p, q = torch.softmax(o - alpha * im, -1), torch.softmax(cr - alpha * im, -1)
        y = torch.nn.functional.one_hot(targets, 11)
        d = p.log() - q.log()
        if direction == "original_refined":
            g_u, g_v = p - y + weight * p * (d - (p * d).sum(-1, keepdim=True)), weight * (q - p)
        else:
            g_u, g_v = p - y + weight * (p - q), weight * q * ((q * d).sum(-1, keepdim=True) - d)
    for tensor, expected in ((o, g_u), (cr, g_v), (im, -alpha * (g_u + g_v))):
        torch.testing.assert_close(tensor.grad, expected, rtol=1e-10, atol=1e-12)


def test_half_precision_logits_are_widened_first() -> None:
    logits = torch.tensor([[9.0, 8.0, -3.0]], dtype=torch.bfloat16)
    result = d2e_loss(logits, torch.tensor([0]), imagined=logits, alpha=0.5)
    expected = torch.nn.functional.cross_entropy(logits.double() * 0.5, torch.tensor([0]))
    assert result.loss.dtype == torch.float32
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_view_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"imagined: shape \(2, 4\); expected that of original, \(3, 4\)"):
        d2e_loss(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), imagined=torch.zeros(2, 4))


def test_debias_without_an_imagined_view_changes_nothing() -> None:
    logits = torch.randn(2, 3)
    assert debias(logits, None, 0.5) is logits

"""The D²E objective against numbers worked by hand and against naive forms."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

from d2e_sft.objective.loss import chunked_d2e_loss, d2e_loss, debias

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


@pytest.mark.parametrize("direction", ["original_refined", "refined_original"])
@pytest.mark.parametrize("others_detached", [False, True])
@pytest.mark.parametrize("views", [(), ("imagined",), ("refined",), ("imagined", "refined")], ids=str)
@pytest.mark.parametrize(("chunk_rows", "chunks"), [(None, None), (4, None), (4, 9)])
@pytest.mark.parametrize("linear", [True, False])
def test_the_chunked_loss_is_the_reference(
    direction: Any,
    others_detached: bool,
    views: tuple[str, ...],
    chunk_rows: int | None,
    chunks: int | None,
    linear: bool,
) -> None:
    torch.manual_seed(0)
    rows, width, vocabulary = 13, 8, 50
    weight = torch.randn(vocabulary, width, dtype=torch.float64, requires_grad=True)
    states = [torch.randn(rows, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    given = {name: state for name, state in zip(("imagined", "refined"), states[1:], strict=True) if name in views}
    targets = torch.randint(vocabulary, (rows,))
    options: dict[str, Any] = {"alpha": 0.7, "kl_weight": 0.3, "kl_direction": direction}

    def project(hidden: torch.Tensor) -> torch.Tensor:
        logits = hidden @ weight.T
        return logits if linear else 5 * torch.tanh(logits / 5)

    logits = {name: project(state) for name, state in given.items()}
    if others_detached:
        logits = {name: view.detach() for name, view in logits.items()}
    reference = d2e_loss(project(states[0]), targets, **logits, **options)
    ours = chunked_d2e_loss(
        states[0], targets, project, parameters=[weight], **given, **options,
        linear=linear, others_detached=others_detached, chunk_rows=chunk_rows, chunks=chunks,
    )  # fmt: skip
    for name in ("loss", "ce", "kl", "correct", "plain_correct", "imagined_correct"):
        torch.testing.assert_close(getattr(ours, name), getattr(reference, name), rtol=1e-12, atol=1e-12, msg=name)
    wanted = [weight, *states]
    expected = torch.autograd.grad(reference.loss, wanted, allow_unused=True, materialize_grads=True)
    gradients = torch.autograd.grad(ours.loss, wanted, allow_unused=True, materialize_grads=True)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.004), (torch.float16, 0.0005)])
def test_low_precision_logits_are_debiased_in_float32(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    states = [(20 * torch.randn(6, 30)).to(dtype).requires_grad_() for _ in range(3)]
    targets = torch.randint(30, (6,))
    reference = d2e_loss(states[0], targets, imagined=states[1].detach(), refined=states[2].detach(), alpha=0.7)
    ours = chunked_d2e_loss(
        states[0], targets, lambda logits: logits, imagined=states[1], refined=states[2], alpha=0.7,
        others_detached=True,
    )  # fmt: skip
    assert ours.loss.item() == pytest.approx(reference.loss.item(), rel=1e-6)
    (expected,) = torch.autograd.grad(reference.loss, states[0])
    (gradient,) = torch.autograd.grad(ours.loss, states[0])
    assert (gradient - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_loss_and_gradients_are_numbers_for_logits_up_to_1e4(alpha: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    states = [torch.tensor([1e4, -1e4, 0.0])[torch.randint(3, (20, 12))].to(dtype).requires_grad_() for _ in range(3)]
    ours = chunked_d2e_loss(
        states[0], torch.randint(12, (20,)), lambda logits: logits, imagined=states[1], refined=states[2], alpha=alpha
    )
    assert ours.loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(ours.loss, states))


def test_float16_gradients_are_scaled_before_they_are_rounded() -> None:
    # Probabilities of 1e-9 vanish in float16; times the loss scale of 2¹⁶ they do not.
    logits = torch.tensor([[20.0, 0.0, 0.0]], dtype=torch.float16, requires_grad=True)
    loss = chunked_d2e_loss(logits, torch.tensor([0]), lambda states: states).loss
    (gradient,) = torch.autograd.grad(loss * 2**16, logits)
    assert gradient[0, 1].item() == pytest.approx(2**16 * math.exp(-20), rel=0.01)


def test_the_parts_of_the_loss_carry_no_gradient() -> None:
    states = torch.randn(4, 7, requires_grad=True)
    result = chunked_d2e_loss(states, torch.zeros(4, dtype=torch.long), lambda logits: logits, refined=states * 2)
    assert result.loss.requires_grad
    assert not any(part.requires_grad for part in (result.ce, result.kl, result.correct))


_LONG_ANSWER = """
import resource, torch
from d2e_sft.objective.loss import CHUNK_ELEMENTS, chunked_d2e_loss
rows, width, vocabulary = 1024, 8, 262144
torch.manual_seed(0)
weight = torch.randn(vocabulary, width, requires_grad=True)
states = [torch.randn(rows, width, requires_grad=True) for _ in range(3)]
targets = torch.randint(vocabulary, (rows,))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loss = chunked_d2e_loss(
    states[0], targets, lambda hidden: hidden @ weight.T, parameters=[weight], imagined=states[1], refined=states[2],
    chunk_rows=CHUNK_ELEMENTS // vocabulary,
)
loss.loss.backward()
assert all(tensor.grad.isfinite().all() and tensor.grad.any() for tensor in (weight, *states))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_answers_times_vocabulary_times_views() -> None:
    # The logits of three views would be 3 GiB, their gradients as much.
    result = subprocess.run([sys.executable, "-c", _LONG_ANSWER], capture_output=True, text=True, check=True)
    assert float(result.stdout) < 1.25, "GiB above what the inputs take"

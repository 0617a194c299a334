"""Attention over packed rows, on a CPU and with the kernels of a GPU, is that of separate sequences."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.model.attention import cuda
from d2e_sft.model.attention.cuda import cuda_attention, cuda_kernel_takes, kernel_agrees
from d2e_sft.model.attention.registry import branch_attention
from d2e_sft.model.attention.segments import LayerOptions, branch_flash_attention, segment_attention
from d2e_sft.model.packing import TokenForest, pack


def three_groups() -> TokenForest:
    """Three groups of three sequences that share prefixes; one sequence of each group leads."""
    source = random.Random(0)

    def some(count: int) -> list[int]:
        return [source.randrange(1000) for _ in range(count)]

    system, group = some(40), []
    for _ in range(3):
        head = [*system, *some(source.randint(8, 20))]
        group += [[*head, *some(source.randint(1, 50))] for _ in range(3)]
    return pack([group], leading=3).forest


def qkv(queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    """(1, H, tokens, D) as models make them: transposed views; fewer key heads than query heads."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, queries, 4, 16), (1, keys, 2, 16), (1, keys, 2, 16))
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def with_gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of a weighted sum of it."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output, *torch.autograd.grad((output * weights).sum(), tensors)]


@pytest.fixture(scope="session")
def forest() -> TokenForest:
    return three_groups()


def test_the_flash_kernel_ignores_keys_outside_its_blocks(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.lead)
    query, *others = qkv(plan.length, plan.end, torch.float64)
    longer = [torch.cat([t, t[:, :, :5] * 100], dim=2) for t in others]
    expected = branch_flash_attention(query, *others, plan.blocks, 0.3)
    assert torch.equal(branch_flash_attention(query, *longer, plan.blocks, 0.3), expected)


def test_bfloat16_sums_over_branches_in_float32(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.length)
    exact = qkv(plan.length, plan.end, torch.float64)
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    ours, reference = (
        with_gradients(branch_attention(*given, plan, LayerOptions(0.3)), given) for given in (rounded, exact)
    )
    for one, other in zip(ours, reference, strict=True):
        assert (one.double() - other).norm() / other.norm() < 0.02


@pytest.mark.parametrize("attention", [branch_attention, segment_attention])
@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_packed_attention_equals_one_dense_mask(
    forest: TokenForest, attention: Any, window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
        plan = forest.plan(start, end)
        tensors = qkv(plan.length, end, dtype)
        mask = plan.mask(window=window)
        dense = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
        ours = attention(*tensors, plan, LayerOptions(0.3, window=window))
        torch.testing.assert_close(
            with_gradients(ours, tensors), with_gradients(dense, tensors), rtol=tolerance, atol=tolerance
        )


def test_dropout_keeps_the_expected_output(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.length)
    query, key, value = (tensor.detach() for tensor in qkv(plan.length, plan.end, torch.float32))
    torch.manual_seed(0)
    ones, options = torch.ones_like(value), LayerOptions(0.3, dropout=0.25)
    # With values of one the output is the sum of the kept weights, in expectation 1.
    total = torch.stack([branch_attention(query, key, ones, plan, options) for _ in range(30)])
    assert total.mean().item() == pytest.approx(1, abs=0.01)
    assert total.std().item() > 0.05


def flash_forward(query: Tensor, key: Tensor, value: Tensor, *options: Any, **form: Any) -> tuple[Tensor, ...]:
    """What CUDA's flash kernel promises, sequence by sequence: the last query of each sees its last key."""
    q_starts, k_starts, longest_q, longest_k, dropout, causal, _ = options
    assert (dropout, causal, form["window_size_right"]) == (0.0, True, None)
    assert (longest_q, longest_k) == (q_starts.diff().max(), k_starts.diff().max())
    parts = []
    for i in range(len(q_starts) - 1):
        q, k = query[q_starts[i] : q_starts[i + 1]], slice(k_starts[i], k_starts[i + 1])
        keys, values = (tensor[k].repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
        distance = torch.arange(len(keys) - len(q), len(keys))[:, None] - torch.arange(len(keys))
        seen = (distance >= 0) & (distance <= (len(keys) if (left := form["window_size_left"]) is None else left))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * form["scale"]
        parts.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values))
    return (torch.cat(parts), *4 * (torch.zeros(0),))


def flash_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *options: Any, **form: Any) -> Any:
    tensors = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    with torch.enable_grad():
        output = flash_forward(*tensors, *options[2:8], False, **form)[0]
    return torch.autograd.grad(output, tensors, gradient)


@pytest.mark.parametrize("window", [None, 25])
def test_the_kernel_of_cuda_is_given_each_segment_with_its_path(
    forest: TokenForest, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The kernel itself runs on a GPU alone (tests/gpu); here is what it is given, and what becomes of its gradients.
    monkeypatch.setattr("d2e_sft.model.attention.cuda._forward", flash_forward)
    monkeypatch.setattr("d2e_sft.model.attention.cuda._backward", flash_backward)
    for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
        plan, options = forest.plan(start, end), LayerOptions(0.3, window=window)
        tensors = qkv(plan.length, end, torch.float32)
        ours, expected = (
            with_gradients(attention(*tensors, plan, options), tensors)
            for attention in (cuda_attention, segment_attention)
        )
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", ["right", "wrong", "missing", "no memory"])
def test_a_kernel_of_cuda_that_is_wrong_or_missing_is_told_and_not_used(
    kernel: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def other(query: Tensor, *tensors: Tensor, **form: Any) -> Any:
        if kernel == "missing":
            raise RuntimeError("no kernel image is available for execution on the device")
        if kernel == "no memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return flash_forward(query * (0.5 if kernel == "wrong" else 1), *tensors, **form)

    monkeypatch.setattr("d2e_sft.model.attention.cuda._forward", other)
    monkeypatch.setattr("d2e_sft.model.attention.cuda._backward", flash_backward)
    kernel_agrees.cache_clear()
    if kernel == "no memory":  # says nothing about the kernel
        with pytest.raises(torch.OutOfMemoryError):
            kernel_agrees(torch.device("cpu"), torch.float32, 16)
        return
    assert kernel_agrees(torch.device("cpu"), torch.float32, 16) == (kernel == "right")
    expected = {"right": "", "wrong": "differs on cpu", "missing": "no kernel image"}[kernel]
    assert expected in caplog.text
    assert bool(caplog.text) == (kernel != "right")


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ({}, True), ({"dtype": torch.float16, "width": 256}, True), ({"dtype": torch.float32}, False),
        ({"device": "cpu"}, False), ({"width": 60}, False), ({"width": 264}, False), ({"value_width": 32}, False),
        ({"dropout": 0.1}, False), ({"capability": (8, 0)}, True), ({"capability": (7, 5)}, False),
        ({"hip": "6.0"}, False), ({"agrees": False}, False),
    ],
)  # fmt: skip
def test_cudas_kernel_is_used_if_exact(change: dict[str, Any], takes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {"device": "cuda", "dtype": torch.bfloat16, "width": 64, "dropout": 0.0, "capability": (9, 0), "hip": None}
    case = {**usual, "agrees": True, **change}
    monkeypatch.setattr(cuda, "kernel_agrees", lambda *_: case["agrees"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: case["capability"])
    monkeypatch.setattr(torch.version, "hip", case["hip"])
    query: Any = SimpleNamespace(
        device=torch.device(case["device"]), dtype=case["dtype"], shape=(1, 4, 7, case["width"])
    )
    value: Any = SimpleNamespace(shape=(1, 4, 7, case.get("value_width", case["width"])))
    assert cuda_kernel_takes(query, value, LayerOptions(1.0, dropout=case["dropout"])) is takes

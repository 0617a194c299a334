"""Attention over a packed row in one call of torch's flash kernel for CUDA: one sequence for each segment.

A segment's keys are those of its path, gathered; the kernel aligns the last query with the last key, so its causal
form is a segment's pattern. Nothing is compiled. The backward gathers again instead of keeping the keys, and sums the
gradients of a key that several branches read in float32.
"""

import logging
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from d2e_sft.model.attention.segments import LayerOptions
from d2e_sft.model.device import is_out_of_memory
from d2e_sft.model.packing import AttentionPlan, pack

logger = logging.getLogger(__name__)
AMPERE = (8, 0)  # the oldest compute capability with the kernel
_WIDEST = 256
_forward = torch.ops.aten._flash_attention_forward
_backward = torch.ops.aten._flash_attention_backward


class Sequences(NamedTuple):
    """A plan as sequences of unequal length: S of them, Q queries, and K keys that repeat those of shared segments."""

    keys: Tensor  # (K,) int64: which key of the row
    q_starts: Tensor  # (S + 1,) int32: where each sequence starts among the queries, and Q
    k_starts: Tensor  # (S + 1,) int32, among `keys`
    longest_q: int
    longest_k: int


def cuda_kernel_takes(query: Tensor, value: Tensor, options: LayerOptions) -> bool:
    """Whether the kernel computes these tensors: 16 bits, Ampere or newer, heads of at most 256, and right here."""
    width = query.shape[-1]
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.float16, torch.bfloat16)
        and width == value.shape[-1]
        and width % 8 == 0
        and width <= _WIDEST
        and not options.dropout
        and torch.version.hip is None
        and torch.cuda.get_device_capability(query.device) >= AMPERE
        and (isinstance(query, FakeTensor) or kernel_agrees(query.device, query.dtype, width))
    )


@cache
def kernel_agrees(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernel runs on this device and agrees with products under a mask, with gradients and a window.

    Attention by segments would not tell: on CUDA it is another form of the same kernel.
    """
    prefix = list(range(50))
    forest = pack([[[*prefix, *range(100, 140)], [*prefix, *range(200, 230)]]]).forest
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, forest.length, width), *2 * ((1, 2, forest.length, width),))
    query, key, value = (torch.randn(s, generator=generator).to(device, dtype).requires_grad_() for s in shapes)
    results: dict[Any, list[Tensor]] = {cuda_attention: [], _masked_attention: []}
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for attention, window in product(results, (None, 30)):
                options = LayerOptions(width**-0.5, window=window)
                output = attention(query, key, value, forest.plan(0, forest.length), options)
                gradients = torch.autograd.grad(output.float().square().sum(), (query, key, value))
                results[attention] += [output, *gradients]
    except (RuntimeError, TypeError, NotImplementedError) as error:  # not built for this card, or another form
        if is_out_of_memory(error):
            raise
        logger.warning("packed rows attend segment by segment: %s", str(error).partition("\n")[0])
        return False
    # Rounding in 16 bits moves the whole by less than a hundredth; a wrong pattern moves it by its own size.
    if all((flash - masked).norm() <= 0.05 * masked.norm() for flash, masked in zip(*results.values(), strict=True)):
        return True
    logger.warning("packed rows attend segment by segment: the flash kernel differs on %s", device)
    return False


def _masked_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, options: LayerOptions) -> Tensor:
    mask = plan.mask(window=options.window).to(query.device)
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, mask, scale=options.scaling, enable_gqa=True)


def cuda_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, options: LayerOptions) -> Tensor:
    """Compute the same as `segment_attention`; (1, H, Q, D) stored as (1, Q, H, D)."""
    sequences: Sequences | None = plan.sequences
    if sequences is None or sequences.keys.device != query.device:
        sequences = sequences_of(plan, query.device)
    if not isinstance(query, FakeTensor):
        plan.sequences = sequences  # for the other layers
    rows = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    output: Tensor = _Flash.apply(*rows, sequences, options)
    return output.transpose(0, 1)[None]


def sequences_of(plan: AttentionPlan, device: torch.device) -> Sequences:
    """Return the sequences of a plan's segments, on a device."""
    segments = plan.forest.segments
    paths = [[segments[j] for j in plan.forest.path(i)] for i in plan.own_segments]
    keys = [torch.arange(s.start, s.end) for path in paths for s in path]
    lengths_q = [path[-1].end - path[-1].start for path in paths]
    lengths_k = [sum(s.end - s.start for s in path) for path in paths]
    q_starts, k_starts = (
        torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32) for lengths in (lengths_q, lengths_k)
    )
    return Sequences(torch.cat(keys).to(device), q_starts, k_starts, max(lengths_q), max(lengths_k))


class _Flash(torch.autograd.Function):
    """(Q, H, D) queries, (T, H or a divisor, D) keys and values → (Q, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sequences: Sequences, options: LayerOptions
    ) -> Tensor:
        output, normaliser, *random_state = _forward(
            query, key[sequences.keys], value[sequences.keys],
            *sequences[1:], 0.0, True, False, **_form(options),
        )[:4]  # fmt: skip
        ctx.save_for_backward(query, key, value, output, normaliser, *random_state)
        ctx.sequences, ctx.options = sequences, options
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, normaliser, *random_state = ctx.saved_tensors
        sequences: Sequences = ctx.sequences
        to_query, to_keys, to_values = _backward(
            gradient.contiguous(), query, key[sequences.keys], value[sequences.keys], output, normaliser,
            *sequences[1:], 0.0, True, *random_state, **_form(ctx.options),
        )  # fmt: skip
        to_key, to_value = (
            torch.zeros_like(whole, dtype=torch.float32).index_add_(0, sequences.keys, part.float()).to(whole.dtype)
            for whole, part in ((key, to_keys), (value, to_values))
        )
        return to_query, to_key, to_value, None, None


def _form(options: LayerOptions) -> dict[str, Any]:
    left = None if options.window is None else options.window - 1  # the query itself is not counted
    return {"scale": options.scaling, "window_size_left": left, "window_size_right": None}

"""The rows that are decoded and how they take a step: packed if the model allows it exactly, otherwise padded.

Packed prompts form one row without padding, and shared prefixes are computed once: a format's system prompt, the
demonstrations of a few-shot prompt, an imagined prompt of several samples. Then each row takes one token per step.
Rows of a later batch enter while those of earlier ones still run.

Legend: B pairs, I imagined rows, R rows, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.cache import Prefix, RowBlock, RowCache, SharedPrefix, StaticBlock, filled_holes, prefill
from d2e_sft.decoding.decoders import RowStates
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.attention.registry import BY_BRANCH, placeholder_mask
from d2e_sft.model.collation import encoder_inputs, left_pad
from d2e_sft.model.device import total_memory, without_cudnn_attention
from d2e_sft.model.forward import (
    bare_model,
    cache_name,
    head_of,
    hidden_states,
    is_fully_sharded,
    last_logits,
    unwrapped,
)
from d2e_sft.model.packing import MIN_SHARED, common_length, pack
from d2e_sft.model.packing_support import takes_packed_rows
from d2e_sft.util.errors import UserError

# Pairs that run at a time unless a number is given; a step with more rows takes as long per row.
MOST_PAIRS = 64
# Largest share of the memory left by the weights that keys and values take.
_SHARE = 0.25

Batch = tuple[list[int], Prefix]  # the indices of its pairs, and what their prompts begin with


def is_sharded(model: Any) -> bool:
    """Whether the model's own forward must be called because it gathers sharded weights (FSDP, ZeRO-3)."""
    return unwrapped(model) is not model or is_fully_sharded(model) or bool(is_deepspeed_zero3_enabled())


@contextmanager
def no_gradients(model: Any) -> Iterator[None]:
    """Inference mode, without cuDNN's attention.

    For sharded models it is `no_grad`, as weights gathered in inference mode could not be trained.
    """
    with without_cudnn_attention(), torch.no_grad() if is_sharded(model) else torch.inference_mode():
        yield


def decodes_packed(model: Any) -> bool:
    """Whether prompts go through the model in packed rows."""
    return not (model.config.is_encoder_decoder or is_sharded(model)) and takes_packed_rows(model)


@contextmanager
def attending_by_branch(model: Any) -> Iterator[Any]:
    """Set the attention that packed rows need, for the duration of the block; gives the model without wrappers."""
    causal = bare_model(model)
    attention = causal.config._attn_implementation
    causal.set_attn_implementation(BY_BRANCH)
    try:
        yield causal
    finally:
        causal.set_attn_implementation(attention)


@contextmanager
def rows_of(model: Any, decoding: DecodingConfig) -> Iterator[PackedRows | PaddedRows]:
    """The rows of a model, still without a pair."""
    if not decodes_packed(model):
        yield (EncoderDecoderRows if model.config.is_encoder_decoder else PaddedRows)(model)
        return
    with attending_by_branch(model) as causal:
        yield PackedRows(causal, decoding)


@dataclass
class _Batch:
    """Pairs that were added together: a block of originals, then one of imagined rows, unless all are plain.

    `partner` are the places of the pairs with an imagined row.
    """

    blocks: list[Any]
    partner: list[int]

    @property
    def pairs(self) -> int:
        return self.blocks[0].rows if self.blocks else 0

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Keep only the running pairs; returns their old places in their new order."""
        order = filled_holes(running)
        if not order:
            self.blocks = []
        elif len(order) < len(running):
            place = {old: new for new, old in enumerate(order)}
            rows = filled_holes([running[pair] for pair in self.partner])
            self.partner = [place[self.partner[row]] for row in rows]
            if rows:
                self.blocks[1].keep(rows)
            else:
                del self.blocks[1:]
            self.blocks[0].keep(order)
        return order


class PackedRows:
    """Rows of prompts that were packed; the model must attend by branch (`attending_by_branch`) while they are used.

    Batches are added at any time, and their rows take their steps together with those of earlier ones. If
    `decoding.compiled`, shapes stay the same from step to step, the step is compiled (`StaticBlock`), and a batch is
    added when the one before has ended.
    """

    def __init__(self, model: Any, decoding: DecodingConfig) -> None:
        self.model, self.compiled, self.room = model, decoding.compiled, decoding.max_new_tokens
        self.head = head_of(model)
        self.forward = _compiled_next_states() if self.compiled else _next_states
        self.cache = RowCache([])  # holds the rows that take the next step; added ones have their states already
        self.batches: list[_Batch] = []
        self.added: list[Tensor] = []
        self.tokens = torch.empty(0)

    def add(self, pairs: Sequence[TokenPair], prefix: Prefix) -> None:
        """Add a batch of resolved pairs; all their prompts begin with `prefix`, and are longer."""
        prompts, partner = prompts_of(pairs)
        row = pack([prompts], prefix=len(prefix.tokens))
        packed, states = prefill(self.model, row, prefix, [index[-1] for index in row.indices])
        views = [rows for rows in (row.indices[: len(pairs)], row.indices[len(pairs) :]) if rows]
        if self.compiled:
            blocks: list[Any] = [StaticBlock(packed, rows, self.room) for rows in views]
        else:
            segments = row.forest.segments
            shared = segments[0].end if all(segment.parent >= 0 for segment in segments[1:]) else 0
            if shared == len(prefix.tokens):
                prefix.shared = common = prefix.shared or SharedPrefix(packed, shared)
            else:
                common = SharedPrefix(packed, shared)  # what only this batch shares
            blocks = [RowBlock(packed, common, [index[shared:] for index in rows], self.room) for rows in views]
        self.batches.append(_Batch(blocks, partner))
        self.added.append(states)
        self._arrange()

    def next_states(self) -> RowStates:
        """Hidden states of the rows' last tokens; call once per token."""
        parts, self.added = self.added, []
        if self.cache.blocks:
            inputs = {
                "input_ids": self.tokens[:, None],
                "position_ids": self.cache.positions(),
                "attention_mask": placeholder_mask(self.tokens.device),
                "row_cache": self.cache,
            }
            parts.insert(0, self.forward(self.model, inputs))
            self.cache.grow()
        self.cache.blocks = [block for batch in self.batches for block in batch.blocks]
        states = torch.cat(parts)
        return RowStates(states[self.originals], states[self.imagined], self.pair_of[self.imagined], *self.head)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Keep only the pairs (B,) that are running; returns their old places in their new order."""
        if self.compiled and any(running):
            return list(range(len(running)))
        order: list[int] = []
        start = 0
        for batch in self.batches:
            end = start + batch.pairs
            order += [start + place for place in batch.keep(running[start:end])]
            start = end
        self.batches = [batch for batch in self.batches if batch.blocks]
        self.cache.blocks = [block for batch in self.batches for block in batch.blocks]
        self._arrange()
        return order

    def append(self, tokens: Tensor) -> None:
        """Append one token (B,) to both rows of each pair."""
        self.tokens = tokens[self.pair_of]

    def _arrange(self) -> None:
        pair_of: list[int] = []
        is_original: list[bool] = []
        first = 0
        for batch in self.batches:
            pair_of += [*range(first, first + batch.pairs), *(first + pair for pair in batch.partner)]
            is_original += [True] * batch.pairs + [False] * len(batch.partner)
            first += batch.pairs
        original = torch.tensor(is_original, dtype=torch.bool)
        self.pair_of = torch.tensor(pair_of, dtype=torch.long, device=self.model.device)
        self.originals, self.imagined = (
            mask.nonzero().squeeze(1).to(self.model.device) for mask in (original, ~original)
        )


def _next_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    return hidden_states(model, **inputs)[:, -1]  # (R, H)


@cache
def _compiled_next_states() -> Callable[..., Tensor]:
    """Compile on first use, as `torch.compile` imports Inductor, which takes most of a second."""
    return torch.compile(_next_states, dynamic=False)


def prompts_of(pairs: Sequence[TokenPair]) -> tuple[list[Any], list[int]]:
    """All original prompts, then the imagined ones; and the pair of each imagined prompt."""
    partner = [place for place, pair in enumerate(pairs) if pair.imagined is not None]
    return [*(pair.original for pair in pairs), *(pairs[place].imagined for place in partner)], partner


class PaddedRows:
    """Left-padded rows of a causal model, one batch after another; answers grow at their end."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def add(self, pairs: Sequence[TokenPair], prefix: Prefix) -> None:
        """Replace the batch after all its pairs have ended."""
        self.pairs = len(pairs)
        prompts, partner = prompts_of(pairs)
        self.partner = torch.tensor(partner, dtype=torch.long, device=self.model.device)
        self.cache: Any = None
        self.tokens, self.row_inputs = self._begin(prompts)

    def next_states(self) -> RowStates:
        """Logits of the next token; call once per token."""
        name = cache_name(self.model)
        inputs = {**self._inputs(), name: self.cache, "use_cache": True}
        logits, output = last_logits(self.model, 1, **inputs)
        if name not in output:
            raise UserError(
                f"{type(bare_model(self.model)).__name__}: answers cannot be generated, as its forward keeps its "
                "state in a form of its own",
                remedy="use a model whose forward returns its keys and values, as that of most models does",
            )
        self.cache = output[name]
        return RowStates(logits[: self.pairs, -1], logits[self.pairs :, -1], self.partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        if not any(running):
            return []
        runs = torch.tensor(running, device=self.partner.device)
        stays = runs[self.partner]
        rows = torch.cat([runs, stays]).nonzero().squeeze(1)
        self.cache.reorder_cache(rows)  # unlike batch_select_indices, for layers with a state, too
        self.row_inputs = {name: tensor[rows] for name, tensor in self.row_inputs.items()}
        self.partner = (runs.cumsum(0) - 1)[self.partner[stays]]
        self.pairs = int(runs.sum())
        return [place for place, runs_on in enumerate(running) if runs_on]

    def append(self, tokens: Tensor) -> None:
        self.tokens = torch.cat([tokens, tokens[self.partner]])[:, None]
        if "position_ids" in self.row_inputs:  # an encoder's prompts stay as they are
            mask = self.row_inputs["attention_mask"]
            self.row_inputs = {
                "attention_mask": torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1),
                "position_ids": self.row_inputs["position_ids"][:, -1:] + 1,
            }

    def _begin(self, prompts: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the tokens of the first forward, and each row's other inputs."""
        inputs = {name: tensor.to(self.model.device) for name, tensor in left_pad(prompts, 0).items()}
        return inputs.pop("input_ids"), inputs

    def _inputs(self) -> dict[str, Any]:
        inputs = {"input_ids": self.tokens, **self.row_inputs}
        if self.cache is not None and all(self.cache.is_linear):
            del inputs["attention_mask"]  # which is of the input alone where all layers have states, as in Mamba
        return inputs


class EncoderDecoderRows(PaddedRows):
    """Prompts of an encoder-decoder model, encoded once; answers grow in its decoder."""

    def _begin(self, prompts: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = {name: tensor.to(self.model.device) for name, tensor in encoder_inputs(prompts, 0).items()}
        encoded = self.model.get_encoder()(**inputs)[0]
        tokens = inputs["input_ids"].new_full((len(prompts), 1), decoder_start_id(self.model))
        return tokens, {"attention_mask": inputs["attention_mask"], "encoded": encoded}

    def _inputs(self) -> dict[str, Any]:
        encoded, mask = self.row_inputs["encoded"], self.row_inputs["attention_mask"]
        return {"encoder_outputs": (encoded,), "attention_mask": mask, "decoder_input_ids": self.tokens}


def decoder_start_id(model: Any) -> int:
    """The token before an answer in the decoder of an encoder-decoder model."""
    start = getattr(model.config, "decoder_start_token_id", None)
    return (getattr(model.config, "pad_token_id", None) or 0) if start is None else start


@dataclass(frozen=True)
class Budget:
    """Limits of what is decoded at a time.

    Attributes:
        pairs: Pairs that run at a time.
        batch: Pairs that enter together.
        tokens: Tokens of rows that run at a time, prompts and answers.
        new_tokens: Longest answer.
        refills: Whether a batch may enter while earlier ones run.
    """

    pairs: int
    batch: int
    tokens: float
    new_tokens: int
    refills: bool

    def fits(self, pairs: Sequence[TokenPair]) -> bool:
        """Whether the pairs may run at a time, if they enter one after another."""
        return self.refills and len(pairs) <= self.pairs and self.cost(pairs) <= self.tokens

    def cost(self, pairs: Sequence[TokenPair]) -> int:
        """The tokens of the pairs' rows at their longest."""
        views = [view for pair in pairs for view in (pair.original, pair.imagined) if view is not None]
        return sum(len(view) + self.new_tokens for view in views)


def budget_of(model: Any, decoding: DecodingConfig) -> Budget:
    """The budget of a model: `batch_size` pairs, or as many as fit the memory of its device, up to `MOST_PAIRS`.

    Rows that are padded or compiled run batch by batch.
    """
    refills = decodes_packed(model) and not decoding.compiled
    batch = min(decoding.group_batch_size, DecodingConfig.GROUP_BATCH_SIZE) if refills else decoding.group_batch_size
    if decoding.batch_size is not None or not refills:
        return Budget(decoding.group_batch_size, batch, math.inf, decoding.max_new_tokens, refills)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))
    free = max(total_memory(model.device) - weights, 0)
    return Budget(MOST_PAIRS, batch, _SHARE * free / _token_bytes(model), decoding.max_new_tokens, refills)


def _token_bytes(model: Any) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * key_heads * width * model.dtype.itemsize)


def batches_of(pairs: Sequence[TokenPair], budget: Budget, group_batch_size: int) -> Iterator[Batch]:
    """Cut the pairs of each group into batches, longest first, with the one `Prefix` of their group.

    Every `group_batch_size` pairs begin a new batch, as these are shared out to processes as a whole. A batch takes
    at most half of the budget's tokens, since its keys and values are copied once.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.group, []).append(index)
    for members in groups.values():
        # Longest first, so that a lack of memory shows at once.
        order = sorted(members, key=lambda index: len(pairs[index].original), reverse=True)
        views = [view for index in order for view in (pairs[index].original, pairs[index].imagined)]
        prompts = [view for view in views if view is not None]
        shared = common_length(prompts)
        prefix = Prefix(prompts[0][:shared] if shared >= MIN_SHARED else ())
        batch: list[int] = []
        for place, index in enumerate(order):
            tokens = budget.cost([pairs[i] for i in (*batch, index)])
            if batch and (place % group_batch_size == 0 or len(batch) == budget.batch or 2 * tokens > budget.tokens):
                yield batch, prefix
                batch = []
            batch.append(index)
        yield batch, prefix

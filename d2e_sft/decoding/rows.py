"""The rows that are decoded and how they take a step: packed if the model allows it exactly, otherwise padded.

Packed prompts form one row without padding, and shared prefixes are computed once: a format's system prompt, the
demonstrations of a few-shot prompt, an imagined prompt of several samples. Then each row takes one token per step.
Rows of a later batch enter while those of earlier ones still run.

Legend: B pairs, I imagined rows, R rows, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.cache import RowBlock, RowCache, SharedPrefix, StaticBlock, filled_holes
from d2e_sft.decoding.choice import Head, RowStates
from d2e_sft.decoding.padded_rows import EncoderDecoderRows, PaddedRows, prompts_of
from d2e_sft.decoding.pairs import Prefix, TokenPair
from d2e_sft.decoding.prefill import prefill
from d2e_sft.model.attention.registry import BY_BRANCH, placeholder_mask
from d2e_sft.model.device import without_cudnn_attention
from d2e_sft.model.forward import bare_model, head_of, hidden_states, is_fully_sharded, unwrapped
from d2e_sft.model.packing import pack
from d2e_sft.model.packing_support import takes_packed_rows


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
    given = causal.config._attn_implementation
    causal.set_attn_implementation(BY_BRANCH)
    try:
        yield causal
    finally:
        causal.set_attn_implementation(given)


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
        self.head = Head(*head_of(model))
        self.forward = _compiled_next_states() if self.compiled else _next_states
        self.cache = RowCache([])  # of the rows that take the next step; added ones have their states already
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
        return RowStates(states[self.originals], states[self.imagined], self.pair_of[self.imagined])

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
        """Find the pair of each row, and which rows are originals and which are imagined."""
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
            which.nonzero().squeeze(1).to(self.model.device) for which in (original, ~original)
        )


def _next_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    return hidden_states(model, **inputs)[:, -1]  # (R, H)


@cache
def _compiled_next_states() -> Callable[..., Tensor]:
    """The compiled step; made on first use, as `torch.compile` imports Inductor, which takes most of a second."""
    return torch.compile(_next_states, dynamic=False)

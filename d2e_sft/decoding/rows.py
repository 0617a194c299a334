"""The rows of a batch and how they take a step: packed if the model allows it exactly, otherwise padded.

Packed prompts form one row without padding, and shared prefixes are computed once: a format's system prompt, the
demonstrations of a few-shot prompt, an imagined prompt of several samples. Then each row takes one token per step.
Padded rows work with any model and use transformers' own cache.

Legend: B pairs, I imagined rows, H hidden size, K key heads, T tokens of the packed row, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.cache import RowBlock, RowCache, SharedPrefix, StaticBlock, filled_holes
from d2e_sft.decoding.choice import Head, RowStates
from d2e_sft.decoding.pairs import Prefix, TokenPair
from d2e_sft.decoding.prefill import prefill
from d2e_sft.model.attention.registry import BY_BRANCH, placeholder_mask
from d2e_sft.model.collation import encoder_inputs, left_pad
from d2e_sft.model.forward import bare_model, head_of, hidden_states, last_logits, unwrapped
from d2e_sft.model.packing import pack
from d2e_sft.model.packing_support import takes_packed_rows


def is_sharded(model: Any) -> bool:
    """Whether the model's own forward must be called because it gathers sharded weights (FSDP, ZeRO-3)."""
    from torch.distributed.fsdp import FSDPModule

    return unwrapped(model) is not model or isinstance(model, FSDPModule) or bool(is_deepspeed_zero3_enabled())


def no_gradients(model: Any) -> AbstractContextManager[Any]:
    """Inference mode; `no_grad` for sharded models, as weights gathered in inference mode could not be trained."""
    return torch.no_grad() if is_sharded(model) else torch.inference_mode()


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
def rows_of(
    model: Any, pairs: Sequence[TokenPair], decoding: DecodingConfig, prefix: Prefix
) -> Iterator[PackedRows | PaddedRows]:
    """The rows of a batch, ready for their first step.

    `pairs` are resolved (`d2e_sft.decoding.pairs.resolved`); all their prompts begin with `prefix`, and are longer.
    """
    if not decodes_packed(model):
        with no_gradients(model):
            rows = (EncoderDecoderRows if model.config.is_encoder_decoder else PaddedRows)(model, pairs)
        yield rows
        return
    with attending_by_branch(model) as causal:
        with no_gradients(model):
            packed = PackedRows(causal, pairs, decoding, prefix)
        yield packed


def prompts_of(pairs: Sequence[TokenPair]) -> tuple[list[Any], list[int]]:
    """All original prompts, then the imagined ones; and the pair of each imagined prompt."""
    partner = [place for place, pair in enumerate(pairs) if pair.imagined is not None]
    return [*(pair.original for pair in pairs), *(pairs[place].imagined for place in partner)], partner


class PackedRows:
    """Rows of prompts that were packed; the model must attend by branch (`attending_by_branch`) while they are used.

    If `decoding.compiled`, shapes stay the same from step to step and the step is compiled (`StaticBlock`).
    """

    def __init__(self, model: Any, pairs: Sequence[TokenPair], decoding: DecodingConfig, prefix: Prefix) -> None:
        self.model, self.pairs = model, len(pairs)
        self.head = Head(*head_of(model))
        prompts, self.partner = prompts_of(pairs)
        row = pack([prompts], prefix=len(prefix.tokens))
        packed, states = prefill(model, row, prefix, [index[-1] for index in row.indices])
        self.compiled, room = decoding.compiled, decoding.max_new_tokens
        self.forward = _compiled_next_states() if self.compiled else _next_states
        views = [rows for rows in (row.indices[: self.pairs], row.indices[self.pairs :]) if rows]
        if self.compiled:
            self.cache = RowCache([StaticBlock(packed, rows, room) for rows in views])
        else:
            segments = row.forest.segments
            shared = segments[0].end if all(segment.parent >= 0 for segment in segments[1:]) else 0
            common = SharedPrefix(packed, shared)
            blocks = [RowBlock(packed, common, [index[shared:] for index in rows], room) for rows in views]
            self.cache = RowCache(blocks, common)
        self.states: Tensor | None = states
        self.tokens = torch.empty(0)

    def next_states(self) -> RowStates:
        """Hidden states of the rows' last tokens; call once per token."""
        states, self.states = self.states, None
        if states is None:
            inputs = {
                "input_ids": self.tokens[:, None],
                "position_ids": self.cache.positions(),
                "attention_mask": placeholder_mask(self.tokens.device),
                "row_cache": self.cache,
            }
            states = self.forward(self.model, inputs)
            self.cache.grow()
        partner = torch.tensor(self.partner, dtype=torch.long, device=states.device)
        return RowStates(states[: self.pairs], states[self.pairs :], partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Keep only the pairs (B,) that are running; returns their old places in their new order."""
        if self.compiled:
            return list(range(self.pairs))
        order = filled_holes(running)
        place = {old: new for new, old in enumerate(order)}
        if self.partner:
            rows = filled_holes([running[pair] for pair in self.partner])
            self.partner = [place[self.partner[row]] for row in rows]
            if rows:
                self.cache.blocks[1].keep(rows)
            else:
                del self.cache.blocks[1]
        self.cache.blocks[0].keep(order)
        self.pairs = len(order)
        return order

    def append(self, tokens: Tensor) -> None:
        """Append one token (B,) to both rows of each pair."""
        self.tokens = torch.cat([tokens, tokens[self.partner]]) if self.partner else tokens


def _next_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    return hidden_states(model, **inputs)[:, -1]  # (R, H)


@cache
def _compiled_next_states() -> Callable[..., Tensor]:
    """The compiled step; made on first use, as `torch.compile` imports Inductor, which takes most of a second."""
    return torch.compile(_next_states, dynamic=False)


class PaddedRows:
    """Left-padded rows of a causal model; answers grow at their end."""

    head = Head(project=lambda logits: logits, linear=False)

    def __init__(self, model: Any, pairs: Sequence[TokenPair]) -> None:
        self.model, self.pairs = model, len(pairs)
        prompts, partner = prompts_of(pairs)
        self.partner = torch.tensor(partner, dtype=torch.long, device=model.device)
        self.cache: Any = None
        self.tokens, self.row_inputs = self._begin(prompts)

    def next_states(self) -> RowStates:
        """Logits of the next token; call once per token."""
        inputs = {**self._inputs(), "past_key_values": self.cache, "use_cache": True}
        logits, output = last_logits(self.model, 1, **inputs)
        self.cache = output.past_key_values
        return RowStates(logits[: self.pairs, -1], logits[self.pairs :, -1], self.partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Keep only the pairs (B,) that are running; returns their old places, in order."""
        runs = torch.tensor(running, device=self.partner.device)
        stays = runs[self.partner]
        rows = torch.cat([runs, stays]).nonzero().squeeze(1)
        self.cache.batch_select_indices(rows)
        self.row_inputs = {name: tensor[rows] for name, tensor in self.row_inputs.items()}
        self.partner = (runs.cumsum(0) - 1)[self.partner[stays]]
        self.pairs = int(runs.sum())
        return [place for place, runs_on in enumerate(running) if runs_on]

    def append(self, tokens: Tensor) -> None:
        """Append one token (B,) to both rows of each pair."""
        self.tokens = torch.cat([tokens, tokens[self.partner]])[:, None]
        if "position_ids" in self.row_inputs:  # an encoder's prompts stay as they are
            mask = self.row_inputs["attention_mask"]
            self.row_inputs = {
                "attention_mask": torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1),
                "position_ids": self.row_inputs["position_ids"][:, -1:] + 1,
            }

    def _begin(self, prompts: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The tokens of the first forward, and each row's other inputs."""
        inputs = {name: tensor.to(self.model.device) for name, tensor in left_pad(prompts, 0).items()}
        return inputs.pop("input_ids"), inputs

    def _inputs(self) -> dict[str, Any]:
        return {"input_ids": self.tokens, **self.row_inputs}


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

"""The rows of a batch and how they take a step: packed prompts where that is exact for the model, else padded ones.

Packed prompts stand in one row, without padding, and what several begin with is computed once: a format's system
prompt, the demonstrations of a few-shot prompt, an imagined prompt that several samples have. Then each row takes one
token a step. Padded rows go through any model, with transformers' own cache.

Legend: B pairs, I imagined rows, L longest prompt, H hidden size, K key heads, T tokens of the packed row, D head
width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.cache import RowBlock, RowCache, SharedPrefix, StaticBlock, filled_holes
from d2e_sft.decoding.choice import Head, RowStates
from d2e_sft.model.attention.registry import BY_BRANCH, KeysAndValues, placeholder_mask
from d2e_sft.model.collation import encoder_inputs, left_pad
from d2e_sft.model.forward import bare_model, head_of, hidden_states, last_logits, packed_inputs, unwrapped
from d2e_sft.model.packing import PackedRow, pack
from d2e_sft.model.packing_support import takes_packed_rows

# Tokens of a prompt's packed row that go through the model at once: beyond it more at once is no faster.
PREFILL_TOKENS = 8192


@dataclass
class Prefix:
    """Tokens that all prompts of several batches begin with; their keys and values once they are computed."""

    tokens: Sequence[int]
    packed: KeysAndValues = field(default_factory=dict)


def is_sharded(model: Any) -> bool:
    """Whether weights are gathered by the whole model's forward (FSDP, ZeRO-3), which must then be called itself."""
    from torch.distributed.fsdp import FSDPModule

    return unwrapped(model) is not model or isinstance(model, FSDPModule) or bool(is_deepspeed_zero3_enabled())


def no_gradients(model: Any) -> AbstractContextManager[Any]:
    """Inference mode, where that is harmless: weights gathered in it (FSDP) could not be trained on afterwards."""
    return torch.no_grad() if is_sharded(model) else torch.inference_mode()


def decodes_packed(model: Any) -> bool:
    """Whether prompts go through the model in packed rows; else in padded ones."""
    return not (model.config.is_encoder_decoder or is_sharded(model)) and takes_packed_rows(model)


@contextmanager
def attending_by_branch(model: Any) -> Iterator[Any]:
    """The model inside its wrappers, with the attention that packed rows need; as it was afterwards."""
    causal = bare_model(model)
    given = causal.config._attn_implementation
    causal.set_attn_implementation(BY_BRANCH)
    try:
        yield causal
    finally:
        causal.set_attn_implementation(given)


def _next_states(model: Any, inputs: dict[str, Any]) -> Tensor:
    """(R, H) hidden states of one new token a row."""
    return hidden_states(model, **inputs)[:, -1]


@cache
def _compiled_next_states() -> Callable[..., Tensor]:
    """Compiled once in a process, every combination of rows and capacities anew. Made when it is asked for, since
    `torch.compile` imports Inductor, which takes most of a second."""
    return torch.compile(_next_states, dynamic=False)


class PackedRows:
    """The rows of a batch: B originals, then I imagined; `partner` (I,) is each imagined row's original.

    The model's attention implementation must be `d2e_by_branch` while they are used.

    Args:
        originals, imagined: prompts; all begin with `prefix` and are longer.
        decoding: where `compiled`, shapes are kept from step to step and the step is compiled; see `StaticBlock`.
    """

    def __init__(
        self,
        model: Any,
        originals: Sequence[Sequence[int]],
        imagined: Sequence[Sequence[int]],
        partner: Sequence[int],
        decoding: DecodingConfig,
        prefix: Prefix,
    ) -> None:
        self.model = bare_model(model)
        self.head = Head(*head_of(self.model))
        self.partner = list(partner)
        count = len(originals)
        row = pack([[*originals, *imagined]], prefix=len(prefix.tokens))
        packed, states = prefill(self.model, row, prefix, [index[-1] for index in row.indices])
        self.compiled, room = decoding.compiled, decoding.max_new_tokens
        self.forward = _compiled_next_states() if self.compiled else _next_states
        of_views = [rows for rows in (row.indices[:count], row.indices[count:]) if rows]
        if self.compiled:
            self.cache = RowCache([StaticBlock(packed, rows, room) for rows in of_views])
        else:
            segments = row.forest.segments
            shared = segments[0].end if all(segment.parent >= 0 for segment in segments[1:]) else 0
            own = [[index[shared:] for index in rows] for rows in of_views]
            blocks = [RowBlock(packed, shared, rows, room) for rows in own]
            self.cache = RowCache(blocks, SharedPrefix(packed, shared))
        self.states: Tensor | None = states
        self.pairs = count
        self.tokens = torch.empty(0)

    def next_states(self) -> RowStates:
        """Hidden states of the rows' last tokens; to be called once a token."""
        states = self._step() if self.states is None else self.states
        self.states = None
        partner = torch.tensor(self.partner, dtype=torch.long, device=states.device)
        return RowStates(states[: self.pairs], states[self.pairs :], partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Go on with the pairs (B,) that are running; returns their old places in their new order."""
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
        """A token (B,) for each pair, the same for both of its rows."""
        self.tokens = torch.cat([tokens, tokens[self.partner]]) if self.partner else tokens

    def _step(self) -> Tensor:
        inputs = {
            "input_ids": self.tokens[:, None],
            "position_ids": self.cache.positions(),
            "attention_mask": placeholder_mask(self.tokens.device),
            "row_cache": self.cache,
        }
        states = self.forward(self.model, inputs)
        self.cache.grow()
        return states


def prefill(model: Any, row: PackedRow, prefix: Prefix, places: Sequence[int]) -> tuple[KeysAndValues, Tensor]:
    """Keys and values of a packed row by layer, (1, K, T, D) each, and the states (places, H) of some of its tokens.

    A prefix that has been computed before is not computed again; one that has not is, and keeps the result.

    Args:
        places: of tokens in the row, behind the prefix, in any order; one may be there twice.
    """
    forest = row.forest
    tokens = torch.tensor([row.tokens], device=model.device)
    packed = dict(prefix.packed)
    start = len(prefix.tokens) if packed else 0
    wanted = torch.tensor(places, device=model.device)
    states: list[Tensor] = []
    owners: list[Tensor] = []
    for end in _ends(row, start, len(prefix.tokens)):
        inputs = packed_inputs(model, forest, tokens, (start, end), remember=packed, recall=packed if start else None)
        part = hidden_states(model, **inputs)[0]
        here = ((wanted >= start) & (wanted < end)).nonzero().squeeze(1)
        states.append(part[wanted[here] - start])
        owners.append(here)
        if end == len(prefix.tokens):
            prefix.packed = dict(packed)
        start = end
    return packed, torch.cat(states)[torch.cat(owners).argsort()]


def _ends(row: PackedRow, start: int, prefix: int) -> list[int]:
    """Where the parts of a prefill end: after whole segments, after the prefix, and after about PREFILL_TOKENS."""
    ends = []
    for segment in row.forest.segments:
        if segment.end <= start:
            continue
        if segment.end == prefix or segment.end - start >= PREFILL_TOKENS:
            ends.append(segment.end)
            start = segment.end
    return ends if ends and ends[-1] == row.forest.length else [*ends, row.forest.length]


class PaddedRows:
    """Prompts of a causal model, left-padded, originals before imagined ones; answers grow at their end."""

    head = Head(project=lambda logits: logits, linear=False)

    def __init__(
        self,
        model: Any,
        originals: Sequence[Sequence[int]],
        imagined: Sequence[Sequence[int]],
        partner: Sequence[int],
        pad_id: int,
    ) -> None:
        self.model = model
        self.pairs = len(originals)
        self.partner = torch.tensor(partner, dtype=torch.long, device=model.device)
        self.cache: Any = None
        self.tokens, self.of_rows = self._begin([*originals, *imagined], pad_id)

    def next_states(self) -> RowStates:
        """Logits of the token after the last; to be called once a token."""
        inputs = {**self._inputs(), "past_key_values": self.cache, "use_cache": True}
        logits, output = last_logits(self.model, 1, **inputs)
        self.cache = output.past_key_values
        return RowStates(logits[: self.pairs, -1], logits[self.pairs :, -1], self.partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Go on with the pairs (B,) that are running; returns their old places in their new order, which stays."""
        runs = torch.tensor(running, device=self.partner.device)
        stays = runs[self.partner]
        rows = torch.cat([runs, stays]).nonzero().squeeze(1)
        self.cache.batch_select_indices(rows)
        self.of_rows = {name: tensor[rows] for name, tensor in self.of_rows.items()}
        self.partner = (runs.cumsum(0) - 1)[self.partner[stays]]
        self.pairs = int(runs.sum())
        return [i for i, still in enumerate(running) if still]

    def append(self, tokens: Tensor) -> None:
        """A token (B,) for each pair, the same for both of its rows."""
        self.tokens = torch.cat([tokens, tokens[self.partner]])[:, None]
        mask = self.of_rows["attention_mask"]
        self.of_rows = {
            "attention_mask": torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1),
            "position_ids": self.of_rows["position_ids"][:, -1:] + 1,
        }

    def _begin(self, prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The tokens of the first forward, and what each row has beside them."""
        inputs = {name: tensor.to(self.model.device) for name, tensor in left_pad(prompts, pad_id).items()}
        return inputs.pop("input_ids"), inputs

    def _inputs(self) -> dict[str, Any]:
        return {"input_ids": self.tokens, **self.of_rows}


class EncoderDecoderRows(PaddedRows):
    """Prompts of an encoder-decoder model, encoded once; answers grow in its decoder."""

    def append(self, tokens: Tensor) -> None:
        """A token (B,) for each pair, the same for both of its rows."""
        self.tokens = torch.cat([tokens, tokens[self.partner]])[:, None]

    def _begin(self, prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, dict[str, Tensor]]:
        inputs = {name: tensor.to(self.model.device) for name, tensor in encoder_inputs(prompts, pad_id).items()}
        encoded = self.model.get_encoder()(**inputs)[0]
        start = getattr(self.model.config, "decoder_start_token_id", None)
        tokens = inputs["input_ids"].new_full((len(prompts), 1), pad_id if start is None else start)
        return tokens, {"attention_mask": inputs["attention_mask"], "encoded": encoded}

    def _inputs(self) -> dict[str, Any]:
        encoded, mask = self.of_rows["encoded"], self.of_rows["attention_mask"]
        return {"encoder_outputs": (encoded,), "attention_mask": mask, "decoder_input_ids": self.tokens}

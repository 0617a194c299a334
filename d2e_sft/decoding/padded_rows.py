"""Prompts of any model as padded rows with transformers' own cache: where packed rows are not exact.

Legend: B pairs, I imagined rows, L longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.decoding.choice import Head, RowStates
from d2e_sft.model.collation import encoder_inputs, left_pad
from d2e_sft.model.forward import last_logits


class _PairedRows:
    """The order of the rows: B originals, then I imagined; `partner` (I,) is each imagined row's original."""

    head = Head(project=lambda logits: logits, linear=False)

    def __init__(self, model: Any, pairs: int, partner: Sequence[int]) -> None:
        self.model = model
        self.pairs = pairs
        self.partner = torch.tensor(partner, dtype=torch.long, device=model.device)

    def next_states(self) -> RowStates:
        """Logits of the token after the last; to be called once a token."""
        logits = self._next_logits()
        return RowStates(logits[: self.pairs], logits[self.pairs :], self.partner)

    def keep(self, running: Sequence[bool]) -> list[int]:
        """Go on with the pairs (B,) that are running; returns their old places in their new order, which stays."""
        runs = torch.tensor(running, device=self.partner.device)
        stays = runs[self.partner]
        self._select(torch.cat([runs, stays]).nonzero().squeeze(1))
        self.partner = (runs.cumsum(0) - 1)[self.partner[stays]]
        self.pairs = int(runs.sum())
        return [i for i, still in enumerate(running) if still]

    def append(self, tokens: Tensor) -> None:
        """A token (B,) for each pair, the same for both of its rows."""
        self._append(torch.cat([tokens, tokens[self.partner]]))

    def _next_logits(self) -> Tensor:
        raise NotImplementedError

    def _select(self, rows: Tensor) -> None:
        raise NotImplementedError

    def _append(self, tokens: Tensor) -> None:
        raise NotImplementedError


class CausalRows(_PairedRows):
    """Prompts of a causal model, left-padded; answers grow at their end."""

    def __init__(
        self, model: Any, originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]],
        partner: Sequence[int], pad_id: int,
    ) -> None:  # fmt: skip
        super().__init__(model, len(originals), partner)
        inputs = left_pad([*originals, *imagined], pad_id)
        self.tokens, self.mask, self.positions = (
            inputs[name].to(model.device) for name in ("input_ids", "attention_mask", "position_ids")
        )
        self.cache: Any = None

    def _next_logits(self) -> Tensor:
        logits, output = last_logits(
            self.model,
            1,
            input_ids=self.tokens,
            attention_mask=self.mask,
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        return logits[:, -1]

    def _select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]

    def _append(self, tokens: Tensor) -> None:
        self.tokens = tokens[:, None]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1


class EncoderDecoderRows(_PairedRows):
    """Prompts of an encoder-decoder model, encoded once; answers grow in its decoder."""

    def __init__(
        self, model: Any, originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]],
        partner: Sequence[int], pad_id: int,
    ) -> None:  # fmt: skip
        super().__init__(model, len(originals), partner)
        prompts = [*originals, *imagined]
        inputs = {name: tensor.to(model.device) for name, tensor in encoder_inputs(prompts, pad_id).items()}
        self.mask = inputs["attention_mask"]
        self.encoded: Tensor = model.get_encoder()(**inputs)[0]
        start = getattr(model.config, "decoder_start_token_id", None)
        self.tokens = inputs["input_ids"].new_full((len(prompts), 1), pad_id if start is None else start)
        self.cache: Any = None

    def _next_logits(self) -> Tensor:
        output = self.model(
            encoder_outputs=(self.encoded,),
            attention_mask=self.mask,
            decoder_input_ids=self.tokens,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return logits

    def _select(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.encoded = self.mask[rows], self.encoded[rows]

    def _append(self, tokens: Tensor) -> None:
        self.tokens = tokens[:, None]

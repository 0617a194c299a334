"""The rows of a batch that is decoded token by token: what the model is called with, and its cache.

Both kinds of model have the same three steps: the next token's logits, the rows that go on, a token for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.collation import encoder_inputs, left_pad
from d2e_sft.forward import last_logits


class CausalRows:
    """Prompts of a causal model, left-padded; answers grow at their end."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> None:
        inputs = {name: tensor.to(model.device) for name, tensor in left_pad(prompts, pad_id).items()}
        self.model = model
        self.tokens = inputs["input_ids"]
        self.mask = inputs["attention_mask"]
        self.positions = inputs["position_ids"]
        self.cache: Any = None

    def next_logits(self) -> Tensor:
        """(rows, V), of the token after the last; to be called once a token."""
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

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows of these indices."""
        self.cache.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]

    def append(self, tokens: Tensor) -> None:
        """A token (rows,) for each."""
        self.tokens = tokens[:, None]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        self.positions = self.positions[:, -1:] + 1


class EncoderDecoderRows:
    """Prompts of an encoder-decoder model, encoded once; answers grow in its decoder."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad_id: int) -> None:
        inputs = {name: tensor.to(model.device) for name, tensor in encoder_inputs(prompts, pad_id).items()}
        self.model = model
        self.mask = inputs["attention_mask"]
        self.encoded: Tensor = model.get_encoder()(**inputs)[0]
        start = getattr(model.config, "decoder_start_token_id", None)
        self.tokens = inputs["input_ids"].new_full((len(prompts), 1), pad_id if start is None else start)
        self.cache: Any = None

    def next_logits(self) -> Tensor:
        """(rows, V), of the token after the last; to be called once a token."""
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

    def keep(self, rows: Tensor) -> None:
        """Go on with the rows of these indices."""
        self.cache.batch_select_indices(rows)
        self.mask, self.encoded = self.mask[rows], self.encoded[rows]

    def append(self, tokens: Tensor) -> None:
        """A token (rows,) for each."""
        self.tokens = tokens[:, None]

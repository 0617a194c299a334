"""Rows of prompts that are padded to one length, with transformers' own cache: for models that take no packed rows.

Legend: B pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.decoding.choice import Head, RowStates
from d2e_sft.decoding.pairs import Prefix, TokenPair
from d2e_sft.model.collation import encoder_inputs, left_pad
from d2e_sft.model.forward import last_logits


def prompts_of(pairs: Sequence[TokenPair]) -> tuple[list[Any], list[int]]:
    """All original prompts, then the imagined ones; and the pair of each imagined prompt."""
    partner = [place for place, pair in enumerate(pairs) if pair.imagined is not None]
    return [*(pair.original for pair in pairs), *(pairs[place].imagined for place in partner)], partner


class PaddedRows:
    """Left-padded rows of a causal model, one batch after another; answers grow at their end."""

    head = Head(project=lambda logits: logits, linear=False)

    def __init__(self, model: Any) -> None:
        self.model = model

    def add(self, pairs: Sequence[TokenPair], prefix: Prefix) -> None:
        """Replace the batch, of which no pair is running."""
        self.pairs = len(pairs)
        prompts, partner = prompts_of(pairs)
        self.partner = torch.tensor(partner, dtype=torch.long, device=self.model.device)
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
        if not any(running):
            return []
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

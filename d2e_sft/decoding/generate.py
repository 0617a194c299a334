"""The loop of debiased decoding: rows take a step, every pair takes a token, finished pairs leave.

Each step runs 2B rows (B originals, B imagined) and picks a token by softmax of `z_original − α · z_imagined`; both
rows of a pair then take it. A pair whose α is 0, or that has no context to remove, has no imagined row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from d2e_sft.config.decoding import DecodingConfig, check_alpha
from d2e_sft.data.chat_template import merged_stop_ids
from d2e_sft.decoding.choice import TokenChoice
from d2e_sft.decoding.rows import (
    EncoderDecoderRows,
    PackedRows,
    PaddedRows,
    Prefix,
    attending_by_branch,
    decodes_packed,
    no_gradients,
)
from d2e_sft.util.errors import UserError


def generate_debiased(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    decoding: DecodingConfig = DecodingConfig(),
    *,
    alpha: Sequence[float] | None = None,
    stop_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
    pad_id: int = 0,
    on_token: Callable[[int, int], object] | None = None,
    streamer: Any = None,
    names: Sequence[int] | None = None,
    prefix: Prefix | None = None,
) -> list[list[int]]:
    """Debiased decoding of one batch (PIPER paper, section 3.3).

    Args:
        model: a causal or an encoder-decoder language model in eval mode.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless every α is 0. A pair whose two prompts
            are equal (no context to remove) is decoded plainly.
        decoding: how; `batch_size` plays no part.
        alpha: the debias ratio of each prompt; None: that of `decoding`.
        stop_ids: tokens that end an answer and are no part of it; None takes those of the generation config.
        tokenizer: reads the tokens where `decoding` has stop strings.
        pad_id: fills masked places where there are any.
        on_token: called with the index of a prompt and its new token as soon as it is chosen.
        streamer: of transformers (`TextStreamer`, …), for a single prompt.
        names: of the prompts; a prompt's random draws depend on its name and the seed alone. Their indices by default.
        prefix: what all prompts of this and further batches begin with, so that it is computed once.

    Returns:
        the new token ids of each prompt, in order.

    Raises:
        UserError: an α is out of range, or there are stop strings and no tokenizer.
        ValueError: `imagined` or `alpha` is missing or of another length than `originals`, or a prompt has no token.
    """
    if decoding.stop_strings and tokenizer is None:
        raise UserError("stop_strings without a tokenizer to read the tokens with", "pass tokenizer=…")
    if not originals:
        return []
    if streamer is not None and len(originals) > 1:
        raise ValueError(f"a streamer takes one prompt, got {len(originals)}; use on_token for several")
    alphas = alpha_of_pairs(originals, imagined, decoding.alpha if alpha is None else alpha)
    debiased = [i for i, each in enumerate(alphas) if each > 0]
    names = range(len(originals)) if names is None else names
    counterparts = [imagined[i] for i in debiased] if imagined is not None else []
    for which, of, prompts in (("originals", range(len(originals)), originals), ("imagined", debiased, counterparts)):
        for i, prompt in zip(of, prompts, strict=True):
            if len(prompt) == 0:
                raise ValueError(f"{which}[{names[i]}] has no token to predict the next one from")
    choose = TokenChoice(decoding, names)
    stops = frozenset(stop_token_ids(model) if stop_ids is None else stop_ids)
    answers = _Answers([[] for _ in originals], stops, decoding.stop_strings, tokenizer, on_token, streamer)
    active = list(range(len(originals)))  # which prompt each pair of the batch is
    alpha_of_prompt = torch.tensor(alphas, device=model.device)
    rows_of_model = _rows(model, originals, counterparts, debiased, decoding, prefix or Prefix(()), pad_id)
    with no_gradients(model), rows_of_model as rows:
        for step in range(decoding.max_new_tokens):
            states = rows.next_states()
            of_rows = alpha_of_prompt[torch.tensor(active, device=model.device)[states.partner]]
            chosen = choose(states, rows.head, of_rows, active)
            running = [answers.add(i, token) for i, token in zip(active, chosen.tolist(), strict=True)]
            if not any(running) or step == decoding.max_new_tokens - 1:
                break
            if not all(running):
                order = rows.keep(running)
                active, chosen = [active[i] for i in order], chosen[order]
            rows.append(chosen)
    if streamer is not None:
        streamer.end()
    return answers.tokens


def stop_token_ids(model: Any, end_of_turn: int | None = None) -> list[int]:
    """The end-of-turn token and whatever else the model's generation config stops at."""
    return merged_stop_ids(getattr(model.generation_config, "eos_token_id", None), end_of_turn)


def alpha_of_pairs(
    originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]] | None, alpha: float | Sequence[float]
) -> list[float]:
    """The α of each pair of prompts, 0 where both are the same: they are one stream, with nothing to subtract.

    Args:
        alpha: of all pairs, or of each.

    Raises:
        UserError: an α is out of range.
        ValueError: `imagined` or `alpha` is missing or of another length than `originals`.
    """
    alphas = [float(alpha)] * len(originals) if isinstance(alpha, float | int) else [float(each) for each in alpha]
    for each in alphas:
        check_alpha(each)
    if len(alphas) != len(originals):
        raise ValueError(f"{len(alphas)} values of alpha for {len(originals)} prompts")
    if not any(alphas):
        return alphas
    if imagined is None or len(imagined) != len(originals):
        raise ValueError(f"alpha={alpha} needs one imagined prompt for each of the {len(originals)} originals")
    pairs = zip(alphas, originals, imagined, strict=True)
    return [0.0 if list(original) == list(other) else each for each, original, other in pairs]


@dataclass
class _Answers:
    """The answers so far, and which have ended: by a token that is no part of them, or by a text that is."""

    tokens: list[list[int]]
    stop_ids: frozenset[int]
    stop_strings: Sequence[str]
    tokenizer: Any
    on_token: Callable[[int, int], object] | None
    streamer: Any
    ended: set[int] = field(default_factory=set)

    def add(self, index: int, token: int) -> bool:
        """Take a token; whether the answer goes on. Of one that has ended, further tokens are ignored."""
        if index not in self.ended and (token in self.stop_ids or self._stops_after(index, token)):
            self.ended.add(index)
        return index not in self.ended

    def _stops_after(self, index: int, token: int) -> bool:
        self.tokens[index].append(token)
        if self.on_token is not None:
            self.on_token(index, token)
        if self.streamer is not None:
            self.streamer.put(torch.tensor([token]))
        if not self.stop_strings:
            return False
        text = self.tokenizer.decode(self.tokens[index])
        return any(stop in text for stop in self.stop_strings)


@contextmanager
def _rows(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]],
    partner: Sequence[int],
    decoding: DecodingConfig,
    prefix: Prefix,
    pad_id: int,
) -> Iterator[PackedRows | PaddedRows]:
    if not decodes_packed(model):
        kind = EncoderDecoderRows if model.config.is_encoder_decoder else PaddedRows
        yield kind(model, originals, imagined, partner, pad_id)
        return
    with attending_by_branch(model) as causal:
        yield PackedRows(causal, originals, imagined, partner, decoding, prefix)

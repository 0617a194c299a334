"""The loop of debiased decoding: each step gives every pair one token; finished pairs are removed from the batch.

Each step runs 2B rows (B originals, B imagined) and picks a token by the scores that the decoder makes of their
logits, `z_original − α · z_imagined` unless another is chosen; both rows of a pair then take it. A pair that is
decoded plainly (α is 0, or there is no context to remove) has no imagined row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from d2e_sft.config.decoding import DecodingConfig
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
        imagined: token ids of each prompt without context; needed unless all are decoded plainly. A pair whose two
            prompts are equal (no context to remove) is.
        decoding: how; `batch_size` plays no part.
        alpha: the debias ratio of each prompt, of the decoder `d2e`; None: that of `decoding`.
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
        UserError: an α is out of range or the decoder has none, a decoder of one's own does not import or returns
            something else than scores, or there are stop strings and no tokenizer.
        ValueError: `imagined` or `alpha` is missing or of another length than `originals`, or a prompt has no token.
    """
    if decoding.stop_strings and tokenizer is None:
        raise UserError("stop_strings without a tokenizer to read the tokens with", "pass tokenizer=…")
    if not originals:
        return []
    if streamer is not None and len(originals) > 1:
        raise ValueError(f"a streamer takes one prompt, got {len(originals)}; use on_token for several")
    of_pairs = decoding_of_pairs(originals, imagined, decoding, alpha)
    paired = [i for i, each in enumerate(of_pairs) if each.needs_imagined]
    names = range(len(originals)) if names is None else names
    counterparts = [imagined[i] for i in paired] if imagined is not None else []
    for which, of, prompts in (("originals", range(len(originals)), originals), ("imagined", paired, counterparts)):
        for i, prompt in zip(of, prompts, strict=True):
            if len(prompt) == 0:
                raise ValueError(f"{which}[{names[i]}] has no token to predict the next one from")
    choose = TokenChoice(decoding, names)
    stops = frozenset(stop_token_ids(model) if stop_ids is None else stop_ids)
    answers = _Answers([[] for _ in originals], stops, decoding.stop_strings, tokenizer, on_token, streamer)
    active = list(range(len(originals)))  # which prompt each pair of the batch is
    alpha_of_prompt = torch.tensor([float(each.alpha) for each in of_pairs], device=model.device)
    rows_of_model = _rows(model, originals, counterparts, paired, decoding, prefix or Prefix(()), pad_id)
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


def decoding_of_pairs(
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None,
    decoding: DecodingConfig,
    alpha: Sequence[float] | None = None,
) -> list[DecodingConfig]:
    """How each pair of prompts is decoded: plainly where both are the same, one stream without anything to contrast.

    Args:
        alpha: the debias ratio of each pair; None: that of `decoding`.

    Raises:
        UserError: an α is out of range, or the decoder has none.
        ValueError: `imagined` or `alpha` is missing or of another length than `originals`.
    """
    if alpha is not None and decoding.decoder != "d2e":
        raise UserError(f"alpha for each prompt with the decoder {decoding.decoder}: it has no α; expected d2e")
    of_pairs = [decoding] * len(originals) if alpha is None else [replace(decoding, alpha=each) for each in alpha]
    if len(of_pairs) != len(originals):
        raise ValueError(f"{len(of_pairs)} values of alpha for {len(originals)} prompts")
    if not any(each.needs_imagined for each in of_pairs):
        return of_pairs
    if imagined is None or len(imagined) != len(originals):
        how = f"decoder {decoding.decoder}" if decoding.decoder != "d2e" else f"alpha={alpha or decoding.alpha}"
        raise ValueError(f"{how} needs one imagined prompt for each of the {len(originals)} originals")
    plain = replace(decoding, decoder="plain")
    pairs = zip(of_pairs, originals, imagined, strict=True)
    return [plain if list(original) == list(other) else each for each, original, other in pairs]


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

"""Debiased generation in process: two streams, one key-value cache.

Each step runs 2B rows (B originals, B imagined) and picks the argmax of `z_original − α · z_imagined`; both rows of
a pair then take the same token. With α = 0 the imagined rows do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.decoding_rows import CausalRows, EncoderDecoderRows
from d2e_sft.loss import debias


@torch.inference_mode()
def generate_debiased(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    *,
    alpha: float = 0.5,
    max_new_tokens: int = 64,
    stop_ids: Sequence[int],
    pad_id: int = 0,
) -> list[list[int]]:
    """Greedy debiased decoding of one batch (PIPER paper, section 3.3).

    Args:
        model: a causal or an encoder-decoder language model in eval mode.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless `alpha` is 0. A pair whose two prompts
            are equal (no context to remove) is decoded plainly.
        alpha: the debias ratio.
        max_new_tokens: tokens at most, the stop token not counted.
        stop_ids: tokens that end an answer; they are not part of the result.
        pad_id: fills masked places.

    Returns:
        the new token ids of each prompt, in order.

    Raises:
        ValueError: `alpha` is positive and `imagined` is missing or of another length.
    """
    streams = 2 if alpha > 0 else 1
    if streams == 2 and (imagined is None or len(imagined) != len(originals)):
        raise ValueError(f"alpha={alpha} needs one imagined prompt for each of the {len(originals)} originals")
    rows = [*originals, *(imagined or [])] if streams == 2 else list(originals)
    decoder = (EncoderDecoderRows if model.config.is_encoder_decoder else CausalRows)(model, rows, pad_id)
    ratio = _ratios(originals, imagined, alpha).to(model.device) if streams == 2 else None
    stops = torch.tensor(list(stop_ids), device=model.device)
    answers: list[list[int]] = [[] for _ in originals]
    active = torch.arange(len(originals), device=model.device)
    for step in range(max_new_tokens):
        chosen = _choose(decoder.next_logits().float(), len(active), ratio)
        running = ~torch.isin(chosen, stops)
        for sample, token in zip(active[running].tolist(), chosen[running].tolist(), strict=True):
            answers[sample].append(token)
        if not running.any() or step == max_new_tokens - 1:
            break
        active, chosen = active[running], chosen[running]
        if not running.all():  # finished pairs leave the batch
            decoder.keep(running.repeat(streams).nonzero().squeeze(1))
            ratio = ratio[running] if ratio is not None else None
        decoder.append(chosen.repeat(streams))
    return answers


def decode_prompts(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    *,
    batch_size: int = 16,
    on_batch: Callable[[list[int], list[list[int]]], object] = lambda indices, answers: None,
    **options: Any,
) -> list[list[int]]:
    """Decode many prompts in batches of similar length; options as for `generate_debiased`.

    Args:
        on_batch: called after each batch with the indices of its prompts and their new tokens.

    Returns:
        the new token ids of each prompt, in the order given.
    """
    order = sorted(range(len(originals)), key=lambda i: len(originals[i]), reverse=True)
    results: list[list[int]] = [[] for _ in originals]
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        pair = [imagined[i] for i in indices] if imagined is not None else None
        answers = generate_debiased(model, [originals[i] for i in indices], pair, **options)
        for i, answer in zip(indices, answers, strict=True):
            results[i] = answer
        on_batch(indices, answers)
    return results


def stop_token_ids(model: Any, end_of_turn: int) -> list[int]:
    """The end-of-turn token and whatever else the model's generation config stops at."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({end_of_turn, *(token for token in listed if token is not None)})


def _choose(logits: Tensor, pairs: int, ratio: Tensor | None) -> Tensor:
    """(pairs,) next tokens from (streams · pairs, V) logits."""
    if ratio is None:
        return logits.argmax(dim=-1)
    return debias(logits[:pairs], logits[pairs:], ratio[:, None]).argmax(dim=-1)


def _ratios(originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]] | None, alpha: float) -> Tensor:
    assert imagined is not None
    pairs = zip(originals, imagined, strict=True)
    return torch.tensor([0.0 if list(original) == list(other) else alpha for original, other in pairs])

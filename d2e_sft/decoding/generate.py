"""The loop of debiased decoding: rows take a step, every pair takes a token, finished pairs leave.

Each step runs 2B rows (B originals, B imagined) and picks a token by softmax of `z_original − α · z_imagined`; both
rows of a pair then take it. A pair whose α is 0, or that has no context to remove, has no imagined row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from d2e_sft.config.decoding import DecodingOptions, check_alphas, merged_stop_ids
from d2e_sft.decoding.choice import TokenChoice
from d2e_sft.decoding.packed_rows import PackedRows, Prefix, is_sharded
from d2e_sft.decoding.padded_rows import CausalRows, EncoderDecoderRows
from d2e_sft.model.attention.registry import BY_BRANCH
from d2e_sft.model.forward import bare_model
from d2e_sft.model.packing_support import takes_packed_rows


def generate_debiased(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]] | None = None,
    *,
    alpha: float | Sequence[float] = 0.5,
    on_token: Callable[[int, int], object] | None = None,
    streamer: Any = None,
    names: Sequence[int] | None = None,
    prefix: Prefix | None = None,
    **options: Any,
) -> list[list[int]]:
    """Debiased decoding of one batch (PIPER paper, section 3.3).

    Args:
        model: a causal or an encoder-decoder language model in eval mode.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless every α is 0. A pair whose two prompts
            are equal (no context to remove) is decoded plainly.
        alpha: the debias ratio, or one for each prompt.
        on_token: called with the index of a prompt and its new token as soon as it is chosen.
        streamer: of transformers (`TextStreamer`, …), for a single prompt.
        names: of the prompts; a prompt's random draws depend on its name and the seed alone. Their indices by default.
        prefix: what all prompts of this and further batches begin with, so that it is computed once.
        **options: see `DecodingOptions`.

    Returns:
        the new token ids of each prompt, in order.

    Raises:
        UserError: an option is out of range, or beam search is asked for.
        ValueError: `imagined` or `alpha` is missing or of another length than `originals`, or a prompt has no token.
    """
    settings = DecodingOptions(**options)
    if not originals:
        return []
    if streamer is not None and len(originals) > 1:
        raise ValueError(f"a streamer takes one prompt, got {len(originals)}; use on_token for several")
    alphas = _alphas(originals, imagined, alpha)
    debiased = [i for i, ratio in enumerate(alphas) if ratio > 0]
    names = range(len(originals)) if names is None else names
    _refuse_empty("originals", {names[i]: prompt for i, prompt in enumerate(originals)})
    _refuse_empty("imagined", {names[i]: imagined[i] for i in debiased} if imagined is not None else {})
    counterparts = [imagined[i] for i in debiased] if imagined is not None else []
    choose = TokenChoice(settings, names)
    answers = _Answers(len(originals), model, settings, on_token, streamer)
    active = list(range(len(originals)))  # which prompt each pair of the batch is
    ratios = torch.tensor(alphas, device=model.device)
    rows_of_model = _rows(model, originals, counterparts, debiased, settings, prefix or Prefix(()))
    with _without_gradients(model), rows_of_model as rows:
        for step in range(settings.max_new_tokens):
            states = rows.next_states()
            ratio = ratios[torch.tensor(active, device=ratios.device)[states.partner]]
            chosen = choose(states, rows.head, ratio, active)
            running = [answers.add(i, token) for i, token in zip(active, chosen.tolist(), strict=True)]
            if not any(running) or step == settings.max_new_tokens - 1:
                break
            if not all(running):
                order = rows.keep(running)
                active, chosen = [active[i] for i in order], chosen[order]
            rows.append(chosen)
    answers.end()
    return answers.tokens


def stop_token_ids(model: Any, end_of_turn: int | None = None) -> list[int]:
    """The end-of-turn token and whatever else the model's generation config stops at."""
    return merged_stop_ids(getattr(model.generation_config, "eos_token_id", None), end_of_turn)


def _without_gradients(model: Any) -> AbstractContextManager[Any]:
    # Weights that are gathered in inference mode (FSDP) could not be trained on afterwards.
    return torch.no_grad() if is_sharded(model) else torch.inference_mode()


class _Answers:
    """The answers so far, and when each has ended."""

    def __init__(
        self,
        count: int,
        model: Any,
        options: DecodingOptions,
        on_token: Callable[[int, int], object] | None,
        streamer: Any,
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.ended: set[int] = set()
        self.stop_ids = set(stop_token_ids(model) if options.stop_ids is None else options.stop_ids)
        self.stop_strings = tuple(options.stop_strings)
        self.tokenizer = options.tokenizer
        self.on_token = on_token
        self.streamer = streamer

    def add(self, index: int, token: int) -> bool:
        """Take a token; whether the answer goes on. Of one that has ended, further tokens are ignored."""
        if index in self.ended:
            return False
        if token in self.stop_ids or self._stops_after(index, token):
            self.ended.add(index)
            return False
        return True

    def _stops_after(self, index: int, token: int) -> bool:
        answer = self.tokens[index]
        answer.append(token)
        if self.on_token is not None:
            self.on_token(index, token)
        if self.streamer is not None:
            self.streamer.put(torch.tensor([token]))
        if not self.stop_strings:
            return False
        text = self.tokenizer.decode(answer)
        return any(stop in text for stop in self.stop_strings)

    def end(self) -> None:
        if self.streamer is not None:
            self.streamer.end()


@contextmanager
def _rows(
    model: Any,
    originals: Sequence[Sequence[int]],
    imagined: Sequence[Sequence[int]],
    partner: Sequence[int],
    options: DecodingOptions,
    prefix: Prefix,
) -> Iterator[PackedRows | CausalRows | EncoderDecoderRows]:
    if model.config.is_encoder_decoder or is_sharded(model) or not takes_packed_rows(model):
        kind = EncoderDecoderRows if model.config.is_encoder_decoder else CausalRows
        yield kind(model, originals, imagined, partner, options.pad_id)
        return
    causal = bare_model(model)
    given = causal.config._attn_implementation
    causal.set_attn_implementation(BY_BRANCH)
    try:
        yield PackedRows(
            causal, originals, imagined, partner, options.max_new_tokens, prefix, compiled=options.compiled
        )
    finally:
        causal.set_attn_implementation(given)


def _refuse_empty(which: str, prompts: Mapping[int, Sequence[int]]) -> None:
    for name, prompt in prompts.items():
        if len(prompt) == 0:
            raise ValueError(f"{which}[{name}] has no token to predict the next one from")


def _alphas(
    originals: Sequence[Sequence[int]], imagined: Sequence[Sequence[int]] | None, alpha: float | Sequence[float]
) -> list[float]:
    """The α of each prompt, 0 where its two prompts are the same."""
    alphas = [float(alpha)] * len(originals) if isinstance(alpha, float | int) else [float(ratio) for ratio in alpha]
    check_alphas(alphas)
    if len(alphas) != len(originals):
        raise ValueError(f"{len(alphas)} values of alpha for {len(originals)} prompts")
    if not any(alphas):
        return alphas
    if imagined is None or len(imagined) != len(originals):
        raise ValueError(f"alpha={alpha} needs one imagined prompt for each of the {len(originals)} originals")
    pairs = zip(alphas, originals, imagined, strict=True)
    return [0.0 if list(original) == list(other) else ratio for ratio, original, other in pairs]

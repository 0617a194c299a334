"""Debiased generation: each step gives one token to every pair and removes finished pairs from the batch.

A step runs the originals and the imagined prompts as rows of one forward and picks a token by the decoder's scores,
by default `z_original − α · z_imagined`. Both rows of a pair then take this token. A pair that is decoded plainly has
no imagined row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.budget import Batch, batches_of, budget_of
from d2e_sft.decoding.choice import NO_TOKEN, TokenChoice
from d2e_sft.decoding.pairs import Prefix, TokenPair, Tokens, resolved, token_pairs
from d2e_sft.decoding.rows import no_gradients, rows_of
from d2e_sft.decoding.stops import Stops
from d2e_sft.model.collation import encoder_inputs
from d2e_sft.model.finite import non_finite_output
from d2e_sft.model.forward import evaluating
from d2e_sft.util.errors import UserError

OnBatch = Callable[[Mapping[int, list[int]]], object]
OnToken = Callable[[int, int | None], object]


def generate(
    model: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
    on_batch: OnBatch = lambda answers: None,
    on_token: OnToken = lambda index, token: None,
) -> list[list[int]]:
    """Decode prompts debiased, in batches of similar length (PIPER paper, equation 6).

    Args:
        model: a causal or an encoder-decoder language model; decodes in eval mode.
        pairs: the prompts as token ids.
        stop_ids: tokens that end an answer and are not part of it; None: those of the generation config.
        tokenizer: needed for the stop strings of `decoding`.
        on_batch: called after each batch with the new tokens of its pairs, by index.
        on_token: called with the index of a pair and each of its tokens as it is chosen, and with None after the last.

    Returns:
        the new token ids of each pair, in order.

    Raises:
        UserError: an α is out of range or the decoder has none, a custom decoder fails, there are stop strings and
            no tokenizer, or beams and no encoder-decoder model. The scores of a token are NaN or infinite, as where
            float16 overflows.
        ValueError: an imagined prompt is missing, or a prompt has no token.
    """
    stops = Stops(model, stop_ids, decoding.stop_strings, tokenizer)
    pairs = resolved(pairs, decoding, model)
    answers: list[list[int]] = [[] for _ in pairs]
    batches = list(batches_of(pairs, budget_of(model, decoding), decoding.group_batch_size))
    batch_of = {index: number for number, (indices, _) in enumerate(batches) for index in indices}
    running = [len(indices) for indices, _ in batches]
    with evaluating(model):
        for index, token in _decoded(model, pairs, decoding, stops, batches):
            on_token(index, token)
            if token is not None:
                answers[index].append(token)
                continue
            number = batch_of[index]
            running[number] -= 1
            if not running[number]:
                on_batch({one: answers[one] for one in batches[number][0]})
    return answers


def stream(
    model: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
) -> Iterator[tuple[int, int]]:
    """Decode a few prompts as one batch; arguments and errors as for `generate`.

    Yields the index of a pair and its next token, as soon as it is chosen; all pairs take turns.
    """
    for index, token in stream_with_ends(model, pairs, decoding, stop_ids=stop_ids, tokenizer=tokenizer):
        if token is not None:
            yield index, token


def stream_with_ends(
    model: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
    left: AbstractSet[int] = frozenset(),
) -> Iterator[tuple[int, int | None]]:
    """Like `stream`, and yield None after a pair's last token.

    `left` are indices of pairs that nobody waits for any longer; the caller adds them while the stream runs.
    """
    stops = Stops(model, stop_ids, decoding.stop_strings, tokenizer)
    pairs = resolved(pairs, decoding, model)
    batches = [([*range(len(pairs))], Prefix(()))] if pairs else []
    yield from _decoded(model, pairs, decoding, stops, batches, left)


def generate_debiased(
    model: Any,
    originals: Sequence[Tokens],
    imagined: Sequence[Tokens] | None = None,
    decoding: DecodingConfig | None = None,
    *,
    stop_ids: Sequence[int] | None = None,
) -> list[list[int]]:
    """Decode prompts given as two lists, as one batch; other arguments, result and errors are those of `generate`.

    `imagined` is the prompt without its context for each original; None decodes all plainly, unless `decoding` says
    otherwise, which is then an error.
    """
    pairs = token_pairs(originals, imagined)
    if decoding is None:
        decoding = DecodingConfig(alpha=0.0) if imagined is None else DecodingConfig()
    return generate(model, pairs, replace(decoding, batch_size=max(len(pairs), 1)), stop_ids=stop_ids)


def _decoded(
    model: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig,
    stops: Stops,
    batches: Sequence[Batch],
    left: AbstractSet[int] = frozenset(),
) -> Iterator[tuple[int, int | None]]:
    """Decode batches, each of which enters as soon as there is room for it; yields None after a pair's last token.

    A pair's random draws depend on its index and the seed only.
    """
    if decoding.num_beams > 1:
        for indices, _ in batches:
            yield from _by_beams(model, {index: pairs[index] for index in indices}, decoding, stops)
        return
    choose = TokenChoice(decoding)
    answers: dict[int, list[int]] = {}  # of the pairs that run
    waiting = deque(batches)
    active: list[int] = []  # index of the pair in each place
    ended: set[int] = set()
    budget = budget_of(model, decoding)
    with rows_of(model, decoding) as rows:
        while waiting or active:
            with no_gradients(model):
                while waiting and (not active or budget.fits([pairs[i] for i in (*active, *waiting[0][0])])):
                    indices, prefix = waiting.popleft()
                    rows.add([pairs[index] for index in indices], prefix)
                    active += indices
                states = rows.next_states()
                alpha = torch.tensor([float(pairs[index].alpha or 0.0) for index in active], device=model.device)
                chosen = choose(states, rows.head, alpha[states.partner], active)
            for index, token in zip(active, chosen.tolist(), strict=True):
                if index in ended:  # a compiled batch keeps its rows
                    continue
                if token == NO_TOKEN:
                    what = "the scores of the next token contain NaN or infinity"
                    raise non_finite_output(pairs[index].name, what, model)
                for told in stops.add(token, answers.setdefault(index, []), decoding.max_new_tokens):
                    if told is None:
                        ended.add(index)
                        del answers[index]
                    yield index, told
            ended.update(index for index in active if index in left)
            running = [index not in ended for index in active]
            with no_gradients(model):
                if not all(running):
                    order = rows.keep(running)
                    active, chosen = [active[place] for place in order], chosen[order]
                if active:  # an ended pair of a compiled batch may have no token
                    rows.append(chosen.clamp(min=0) if decoding.compiled else chosen)


def check_beams(model: Any, decoding: DecodingConfig) -> None:
    """Raise UserError for beams with a decoder-only model."""
    if decoding.num_beams > 1 and not model.config.is_encoder_decoder:
        raise UserError(
            f"num_beams={decoding.num_beams}: this model has only a decoder; expected an encoder-decoder such as T5",
            "use num_beams=1 (drop --num-beams)",
        )


def _by_beams(
    model: Any, pairs: Mapping[int, TokenPair], decoding: DecodingConfig, stops: Stops
) -> Iterator[tuple[int, int | None]]:
    """Decode one batch by transformers' beam search; yields each answer as a whole, then None."""
    check_beams(model, decoding)

    def checked(_: Tensor, scores: Tensor) -> Tensor:
        if scores.isnan().any():
            what = "the scores of the next token contain NaN or infinity"
            raise non_finite_output(f"a batch of {len(pairs)} prompts", what, model)
        return scores

    inputs = encoder_inputs([pair.original for pair in pairs.values()], 0)
    with no_gradients(model):
        found = model.generate(
            **{name: tensor.to(model.device) for name, tensor in inputs.items()},
            num_beams=decoding.num_beams,
            do_sample=False,
            max_new_tokens=decoding.max_new_tokens,
            eos_token_id=sorted(stops.ids) or None,
            logits_processor=LogitsProcessorList([checked]),
        )
    for index, (_, *tokens) in zip(pairs, found.tolist(), strict=True):  # without the decoder's start
        answer: list[int] = []
        for token in takewhile(lambda token: token not in stops.ids, tokens):
            answer.append(token)
            yield index, token
            if stops.end(answer):
                break
        yield index, None

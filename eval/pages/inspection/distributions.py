"""The likeliest tokens of each view at each position of an answer, for each α of a grid.

The model gets the answer's tokens (teacher forcing), so every position has the same prefix for each α. Tokens that are
among the likeliest for some α are kept; with the normaliser of each α their probabilities are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.finite import non_finite_output

_DIGITS = 5


@dataclass(frozen=True)
class Candidate:
    """A token at one position, with its log-probability in each view in nats, rounded to five decimals."""

    token: int
    text: str
    original: float
    imagined: float


@dataclass(frozen=True)
class AnswerPosition:
    """One position of the answer.

    Attributes:
        text: the answer's own token.
        chosen: index of that token's candidate.
        normalisers: log Σ exp(original − α · imagined) over the vocabulary for each α. A candidate's debiased
            log-probability is original − α · imagined − normaliser.
    """

    text: str
    chosen: int
    candidates: list[Candidate]
    normalisers: list[float]


def answer_positions(
    model: Any,
    tokenizer: Any,
    pair: TokenPair,
    answer: Sequence[int],
    *,
    alphas: Sequence[float],
    top: int = 8,
) -> list[AnswerPosition]:
    """Compute the positions of one answer by a model in eval mode; UserError if a probability is NaN.

    `answer` ends with the end token; `top` is the number of likeliest tokens to keep.
    """
    prompts = (pair.original, pair.imagined or pair.original)
    both = [_log_probabilities(model, prompt, answer) for prompt in prompts]  # (A, V) each
    if any(view.isnan().any() for view in both):
        raise non_finite_output(pair.name, "the probabilities of its answer contain NaN", model)
    rows = zip(answer, *both, strict=True)
    return [_position(tokenizer, token, own, other, alphas, top) for token, own, other in rows]


@torch.no_grad()
def _log_probabilities(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """(A, V) log-probabilities at the positions that predict the answer's tokens."""
    device = model.device
    if model.config.is_encoder_decoder:
        start = model.config.decoder_start_token_id
        decoder = torch.tensor([[start, *answer[:-1]]], device=device)
        logits = model(input_ids=torch.tensor([list(prompt)], device=device), decoder_input_ids=decoder).logits[0]
    else:
        row = torch.tensor([[*prompt, *answer[:-1]]], device=device)
        logits = model(input_ids=row).logits[0, -len(answer) :]
    return logits.float().log_softmax(dim=-1).cpu()


def _position(
    tokenizer: Any, token: int, original: Tensor, imagined: Tensor, alphas: Sequence[float], top: int
) -> AnswerPosition:
    kept = {token, *imagined.topk(top).indices.tolist()}
    normalisers = []
    for alpha in alphas:
        debiased = original - alpha * imagined  # (V,)
        normalisers.append(round(debiased.logsumexp(dim=-1).item(), _DIGITS))
        kept.update(debiased.topk(top).indices.tolist())
    order = sorted(kept, key=lambda one: -original[one].item())
    candidates = [
        Candidate(one, tokenizer.decode([one]), *(round(view[one].item(), _DIGITS) for view in (original, imagined)))
        for one in order
    ]
    return AnswerPosition(tokenizer.decode([token]), order.index(token), candidates, normalisers)

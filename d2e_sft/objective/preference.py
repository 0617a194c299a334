"""The objective `prefer`: the log-probability of the gold answer against that of a rejected one.

The two answers are branches of one prompt. The loss of a pair depends on all its tokens. So its gradient at each
token's log-probability is computed first, and a weighted cross entropy carries it through the head, chunk by chunk.

Legend: B samples, R of them with a rejected answer (a pair), N gold tokens, M rejected tokens, β `prefer_beta`,
γ `prefer_gamma`. Of an answer, log p is the sum over its tokens, r the same by the reference, and n their number.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import AnswerPairs
from d2e_sft.objective.chunks import Head, sum_in_chunks
from d2e_sft.objective.objectives import AnswerTokens, Objective, at_least_float32, cross_entropy, hits, prefer

# TRL's names; means over pairs.
PAIR_MEANS = (
    *("rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"),
    *("logps/chosen", "logps/rejected"),
)
Scores = tuple[Tensor, Tensor]  # (R,) of the gold answers, and of the rejected ones


def dpo(scores: Scores, lengths: Scores, options: D2ESection) -> Tensor:
    """−log σ(β·(s − s')), s = log p − r (Rafailov et al., 2023, arXiv 2305.18290)."""
    return F.softplus(-options.beta * (scores[0] - scores[1]))


def ipo(scores: Scores, lengths: Scores, options: D2ESection) -> Tensor:
    """(s/n − s'/n' − 1/(2β))² with s as in `dpo` (Azar et al., 2023, arXiv 2310.12036); token means as in TRL."""
    return (scores[0] / lengths[0] - scores[1] / lengths[1] - 1 / (2 * options.beta)) ** 2


def hinge(scores: Scores, lengths: Scores, options: D2ESection) -> Tensor:
    """max(0, 1 − β·(s − s')) with s as in `dpo` (SLiC-HF: Zhao et al., 2023, arXiv 2305.10425)."""
    return F.relu(1 - options.beta * (scores[0] - scores[1]))


def simpo(scores: Scores, lengths: Scores, options: D2ESection) -> Tensor:
    """−log σ(β·(s − s') − γ), s = log p / n (Meng et al., 2024, arXiv 2405.14734)."""
    return F.softplus(options.prefer_gamma - options.beta * (scores[0] - scores[1]))


def orpo(scores: Scores, lengths: Scores, options: D2ESection) -> Tensor:
    """−β · log σ(log odds(s) − log odds(s')), s as in `simpo` (Hong et al., 2024, arXiv 2403.07691)."""
    gold, rejected = (log_p - _log_of_rest(log_p) for log_p in scores)
    return options.beta * F.softplus(rejected - gold)


FORMS: dict[str, Callable[[Scores, Scores, D2ESection], Tensor]] = {
    form.__name__: form for form in (dpo, ipo, orpo, simpo, hinge)
}


def answer_tokens(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target, and whether it is the argmax; (n,) each."""
    wide = at_least_float32(logits)
    return -cross_entropy(wide, targets), hits(wide.detach(), targets)


def log_probabilities(pairs: AnswerPairs, log_p: Tensor) -> Tensor:
    """Return the log-probability of each answer, (B + R,), from those of the tokens (N + M,)."""
    places = pairs.answers
    return torch.zeros(places.shape, dtype=log_p.dtype, device=log_p.device).masked_scatter(places, log_p).sum(dim=1)


def preference_sums(d2e: D2ESection, pairs: AnswerPairs, log_p: Tensor, right: Tensor) -> dict[str, Tensor]:
    """Return `loss` (with gradient), and without: the terms' sums, counts of right gold tokens, and sums over pairs.

    The loss is that of the gold tokens plus `tokens_per_pair` times that of the pairs. Divided by the gold tokens of a
    step, it is a mean over tokens plus a mean over pairs. `log_p` and `right` are (N + M,), from `answer_tokens`.
    """
    answers, lengths, size = log_probabilities(pairs, log_p), pairs.answers.sum(dim=1), pairs.size
    owner, scores = pairs.owner, answers
    if not d2e.needs_reference:
        scores = answers / lengths
    elif pairs.reference is not None:
        scores = answers - pairs.reference
    else:
        raise ValueError("rows without log-probabilities by the reference; expected the rows of the trainer")
    gold, rejected = scores[owner], scores[size:]
    losses = FORMS[d2e.prefer_form]((gold, rejected), (lengths[owner], lengths[size:]), d2e)
    preference = losses.sum()
    ce = -answers[:size].sum()
    with torch.no_grad():
        rewards = d2e.beta * torch.stack([gold, rejected])
        means = [*rewards, rewards[0] - rewards[1], (rewards[0] > rewards[1]).to(rewards.dtype)]
        means += [answers[owner], answers[size:]]
        counts = dict.fromkeys(("correct", "plain_correct"), right[: pairs.gold].sum())
    return {
        "loss": d2e.sft_weight * ce + pairs.tokens_per_pair * preference,
        "ce": ce.detach(),
        "preference": preference.detach(),
        **counts,
        "imagined_correct": torch.zeros_like(counts["correct"]),
        "pairs": torch.tensor(len(owner), device=log_p.device),
        **{name: mean.detach().sum() for name, mean in zip(PAIR_MEANS, means, strict=True)},
    }


def preference_in_chunks(d2e: D2ESection, head: Head, state: Tensor, pairs: AnswerPairs) -> dict[str, Tensor]:
    """Return `preference_sums` of hidden states (N + M, H), with the logits of one chunk in memory at a time."""
    log_p, right = tokens_in_chunks(head, state, pairs.targets)
    log_p.requires_grad_(torch.is_grad_enabled())
    sums = preference_sums(d2e, pairs, log_p, right)
    if not torch.is_grad_enabled():
        return sums
    (slope,) = torch.autograd.grad(sums["loss"], log_p)
    tokens = AnswerTokens(pairs.targets, torch.ones_like(right), -slope)
    carrier = sum_in_chunks(Objective(d2e, prefer, {"ce": 1.0}), head, {"original": state}, tokens)["loss"]
    return {**sums, "loss": sums["loss"].detach() + (carrier - carrier.detach())}


@torch.no_grad()
def tokens_in_chunks(head: Head, state: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `answer_tokens` of hidden states (n, H), without gradient."""
    of_chunks = [answer_tokens(head.project(state[part]), targets[part]) for part in head.parts(len(targets))]
    # Autocast would reuse the head that was cast without gradient.
    torch.clear_autocast_cache()
    log_p, right = (torch.cat(parts) for parts in zip(*of_chunks, strict=True))
    return log_p, right


def _log_of_rest(log_p: Tensor) -> Tensor:
    """Return log(1 − p), exact for small and for large p; p is kept below 1 by the smallest step."""
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    small = log_p < -0.7
    return torch.where(
        small,
        torch.log1p(-log_p.masked_fill(~small, -1.0).exp()),
        torch.log(-torch.expm1(log_p.masked_fill(small, -0.5))),
    )

"""The objectives: functions from the logits of the views to loss terms, and their sums over answer tokens.

An objective is a function of

- `logits`: view → (n, V), float32 or float64, at the positions that predict the answer tokens
- `targets`: (n,) the answer tokens
- `content`: (n,) bool, False for tokens of the response form ("The answer is:", the end of the turn)
- `options`: section `d2e` of the recipe

and returns its terms by name, (n,) each, in nats. The loss of a token is the sum of its terms, `kl` times `kl_weight`.

Your own function has the same form. It is named in the recipe as `d2e.objective=module:function`, the module installed
or in the folder where training starts, and gets the views in `d2e.own_views`. Options of its own are keyword arguments
after these, set by `module:function:KEY=VALUE,…`. `examples/objectives.py` has some.

Legend: z_o, z_im, z_r logits of the original, imagined and refined view, p their softmax, y the answer token,
CE(z) = −log softmax(z)[y], λ `kl_weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.config.functions import load_function, load_with_options
from d2e_sft.config.objectives import ARGUMENTS, View, function_name, is_own
from d2e_sft.config.recipe import D2ESection
from d2e_sft.util.errors import UserError

Logits = Mapping[View, Tensor]
ObjectiveFunction = Callable[[Logits, Tensor, Tensor, D2ESection], dict[str, Tensor]]
Project = Callable[[Tensor], Tensor]  # a head, hidden states (n, H) → logits (n, V)
_LOGGED = {  # names that a term may not have
    *("loss", "correct", "plain_correct", "imagined_correct", "mean_token_accuracy", "plain_accuracy", "bias_share"),
    *("kl_rows", "skipped_steps", "alpha", "tokens_per_second", "memory_gib", "grad_norm", "learning_rate", "epoch"),
    "step",
}


def d2e(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(u) + λ · KL(u ‖ v) with u = z_o − α·z_im, v = z_r − α·z_im (PIPER paper, equations 3 to 8).

    Without a refined view there is no `kl`; with the original view only, this is plain supervised fine-tuning.
    """
    u, v = _debiased(logits, options)
    ce = cross_entropy(u, targets)
    if v is None:
        return {"ce": ce}
    return {"ce": ce, "kl": divergence(u, v) if options.kl_direction == "original_refined" else divergence(v, u)}


def teacher(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(u) + CE(v) + λ · KL(v, detached ‖ u), u and v the logits of the original and the refined view.

    The refined view learns only from the answers, so no divergence pulls it towards answers that need no context.
    It is context distillation (Snell et al., 2022, arXiv 2209.15189) with a teacher in training. With `debias`,
    u = z_o − α·z_im and v = z_r − α·z_im.
    """
    u, v = _debiased(logits, options)
    assert v is not None
    return {
        "ce": cross_entropy(u, targets),
        "refined_ce": cross_entropy(v, targets),
        "kl": divergence(v.detach(), u),
    }


def prefer(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o), the part of `prefer` that is a sum over tokens; `preference` adds the loss of pairs."""
    return {"ce": cross_entropy(logits["original"], targets)}


FUNCTIONS: dict[str, ObjectiveFunction] = {"sft": d2e, "d2e": d2e, "teacher": teacher, "prefer": prefer}


def _debiased(logits: Logits, options: D2ESection) -> tuple[Tensor, Tensor | None]:
    imagined, refined, alpha = logits.get("imagined"), logits.get("refined"), options.effective_alpha
    return debias(logits["original"], imagined, alpha), None if refined is None else debias(refined, imagined, alpha)


def debias(original: Tensor, imagined: Tensor | None, alpha: float) -> Tensor:
    """Debiased logits `original − α · imagined` (PIPER paper, equations 6 and 7); same shape as `original`."""
    return original if imagined is None else original - alpha * imagined


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(logits) at the targets, (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) ‖ softmax(second)) per row, (n,)."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def hits(logits: Tensor, targets: Tensor) -> Tensor:
    """(n,) bool, whether the largest logit is the target's."""
    return logits.argmax(dim=-1) == targets


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it is."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


@dataclass(frozen=True)
class AnswerTokens:
    """The answer tokens of a micro-batch."""

    targets: Tensor  # (N,) token ids
    content: Tensor  # (N,) bool, False for tokens of the response form
    weights: Tensor | None = None  # (N,) weight of each token's loss; None for 1

    def __getitem__(self, part: slice) -> AnswerTokens:
        weights = None if self.weights is None else self.weights[part]
        return AnswerTokens(self.targets[part], self.content[part], weights)


@dataclass(frozen=True)
class Objective:
    """The objective of a recipe, ready to be computed."""

    d2e: D2ESection
    function: ObjectiveFunction
    weights: Mapping[str, float]  # name of each term → its weight in the loss

    @classmethod
    def of(cls, d2e: D2ESection, vocabulary: int) -> Self:
        """Look the function up and call it on two tokens with equal logits, to learn the names of its terms."""
        function = function_of(d2e)
        logits = {view: torch.zeros(2, vocabulary, requires_grad=True) for view in d2e.views}
        terms = function(logits, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), d2e)
        weights = {"kl": d2e.kl_weight, **({"ce": d2e.sft_weight} if d2e.prefers else {})}
        return cls(d2e, function, {name: weights.get(name, 1.0) for name in terms})

    def sums(self, logits: Logits, tokens: AnswerTokens) -> dict[str, Tensor]:
        """Return sums over tokens: `loss` (with gradient), each term, `correct`, `plain_correct`, `imagined_correct`.

        `logits` are (N, V) for each view. The last three count the tokens that are the argmax of the logits as the
        model is decoded, of the original view and of the imagined view. Raises UserError if a user's own function
        returns other terms than before.
        """
        wide = {view: at_least_float32(of_view) for view, of_view in logits.items()}
        terms = self.function(wide, tokens.targets, tokens.content, self.d2e)
        if terms.keys() != self.weights.keys():
            raise UserError(
                f"d2e.objective={self.d2e.objective}: returned the terms {', '.join(terms)}, before that "
                f"{', '.join(self.weights)}; expected the same for every batch"
            )
        if tokens.weights is not None:
            terms = {name: term * tokens.weights.to(term.dtype) for name, term in terms.items()}
        sums = {name: term.sum() for name, term in terms.items()}
        loss = torch.stack([self.weights[name] * term for name, term in sums.items()]).sum()
        detached = {name: term.detach() for name, term in sums.items()}
        return {"loss": loss, **detached, **self._counts(wide, tokens.targets)}

    @torch.no_grad()
    def _counts(self, logits: Logits, targets: Tensor) -> dict[str, Tensor]:
        original, imagined, alpha = logits["original"], logits.get("imagined"), self.d2e.effective_alpha
        plain = hits(original, targets).sum()
        subtracted = imagined is not None and alpha > 0
        return {
            "correct": hits(debias(original, imagined, alpha), targets).sum() if subtracted else plain.clone(),
            "plain_correct": plain,
            "imagined_correct": torch.zeros_like(plain) if imagined is None else hits(imagined, targets).sum(),
        }


def function_of(d2e: D2ESection) -> ObjectiveFunction:
    """Return the function that the recipe names; the result of a user's own function is checked at each call."""
    return _own(d2e.objective) if is_own(d2e.objective) else FUNCTIONS[d2e.objective]


@cache
def _own(name: str) -> ObjectiveFunction:
    function, called = load_function(function_name(name), "objective"), function_name(name).rpartition(":")[2]
    if isinstance(function, (type, torch.nn.Module)):
        raise UserError(
            f"d2e.objective={name}: is a {'class' if isinstance(function, type) else 'torch module'}; expected a "
            "function, as only the model's parameters are optimised, saved and resumed",
            f"write def {called.lower()}({', '.join(ARGUMENTS)}); the model holds what is trained",
        )
    return partial(_checked, name, load_with_options("objective", name, ARGUMENTS))


def _checked(
    name: str, function: Callable[..., Any], logits: Logits, targets: Tensor, content: Tensor, options: D2ESection
) -> dict[str, Tensor]:
    try:
        terms = function(logits, targets, content, options)
    except KeyError as error:
        if error.args[0] not in ("original", "imagined", "refined"):
            raise
        raise UserError(
            f"d2e.objective={name}: the function uses the view {error.args[0]!r} but gets only {', '.join(logits)}",
            remedy=f"set d2e.own_views=[{','.join([*logits, error.args[0]])}]",
        ) from None
    if not isinstance(terms, dict) or not terms:
        raise UserError(f"d2e.objective={name}: returned {terms!r:.60}; expected a dict of terms")
    for key, term in terms.items():
        if problem := _problem(key, term, targets):
            raise UserError(
                f"d2e.objective={name}: the term {key!r} {problem}; expected a tensor of shape ({len(targets)},), "
                "nats for each answer token, under a name of its own"
            )
    trains = torch.is_grad_enabled() and any(view.requires_grad for view in logits.values())
    if trains and not any(term.requires_grad for term in terms.values()):
        raise UserError(
            f"d2e.objective={name}: no term has a gradient, so nothing would be trained",
            remedy="take detach() or no_grad() from the function",
        )
    return terms


def _problem(key: str, term: Any, targets: Tensor) -> str | None:
    if key in _LOGGED:
        return "has a name that is already used in the log"
    if not isinstance(term, Tensor):
        return f"is {term!r:.60}"
    if term.shape != targets.shape:
        return f"has the shape {tuple(term.shape)}"
    # The memory estimate calls objectives with fake tensors, which have no values.
    finite = isinstance(term, FakeTensor) or bool(torch.isfinite(term).all())
    return None if finite else "contains NaN or infinity"

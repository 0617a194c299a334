"""Your own objective: a function named in the recipe, `d2e.objective=module:function`.

    import torch.nn.functional as F

    def my_loss(logits, targets, content, options):
        return {"ce": F.cross_entropy(logits["original"], targets, reduction="none")}

in `my_objectives.py`, installed or in the folder where training starts, is `d2e.objective=my_objectives:my_loss`; see
`objectives` for arguments and result. The function gets the views in `d2e.own_views`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.config.functions import load_function
from d2e_sft.config.objectives import is_own
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import FUNCTIONS, Logits, ObjectiveFunction
from d2e_sft.util.errors import UserError

_ARGUMENTS = ("logits", "targets", "content", "options")
_LOGGED = {
    *("loss", "correct", "plain_correct", "imagined_correct", "debiased_accuracy", "plain_accuracy", "bias_share"),
    *("kl_rows", "skipped_steps"),
    *("alpha", "tokens_per_second", "memory_gib", "grad_norm", "learning_rate", "epoch", "step"),
}


def function_of(d2e: D2ESection) -> ObjectiveFunction:
    """Return the function that the recipe names; the result of a user's own function is checked at each call.

    Raises:
        UserError: there is no such function, or it takes other arguments.
    """
    return _own(d2e.objective) if is_own(d2e.objective) else FUNCTIONS[d2e.objective]


@cache
def _own(name: str) -> ObjectiveFunction:
    function = load_function(name, "objective")
    with suppress(ValueError):  # a signature that Python does not know
        takes = inspect.signature(function)
        try:
            takes.bind(*_ARGUMENTS)
        except TypeError:
            raise UserError(
                f"d2e.objective={name}: takes {takes}; expected four arguments, ({', '.join(_ARGUMENTS)})",
                f"write def {name.rpartition(':')[2]}({', '.join(_ARGUMENTS)})",
            ) from None
    return partial(_checked, name, function)


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
        problem = None
        if key in _LOGGED:
            problem = "has a name that is already used in the log"
        elif not isinstance(term, Tensor) or term.shape != targets.shape:
            problem = f"has the shape {tuple(term.shape)}" if isinstance(term, Tensor) else f"is {term!r:.60}"
        # The memory estimate calls this with fake tensors, which have no values.
        elif not isinstance(term, FakeTensor) and not torch.isfinite(term).all():
            problem = "contains NaN or infinity"
        if problem:
            raise UserError(
                f"d2e.objective={name}: the term {key!r} {problem}; expected a tensor of shape ({len(targets)},), "
                "nats for each answer token, under a name of its own"
            )
    return terms

"""An objective of the user's own: a function named in the recipe, `d2e.objective=module:function`.

    import torch.nn.functional as F

    def my_loss(logits, targets, content, options):
        return {"ce": F.cross_entropy(logits["original"], targets, reduction="none")}

in `my_objectives.py` is `d2e.objective=my_objectives:my_loss`; arguments and result as in `objectives`. The module is
looked for among what is installed and in the folder that training is started from. `d2e.own_views` says which views
it is given, the original and the imagined one by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.config.objectives import is_own
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import FUNCTIONS, Logits, ObjectiveFunction
from d2e_sft.util.errors import UserError
from d2e_sft.util.functions import load_function

# What a forward returns and what is logged beside the terms.
_TAKEN = {
    *(
        "loss",
        "correct",
        "plain_correct",
        "imagined_correct",
        "debiased_accuracy",
        "plain_accuracy",
        "bias_share",
        "sample_weight",
    ),
    *("alpha", "tokens_per_second", "memory_gib", "grad_norm", "learning_rate", "epoch", "step"),
}


def function_of(d2e: D2ESection) -> ObjectiveFunction:
    """The function that a recipe's objective names.

    Raises:
        UserError: a function of the user's own that is not there; what it returns is checked at each call.
    """
    return _own(d2e.objective) if is_own(d2e.objective) else FUNCTIONS[d2e.objective]


@cache
def _own(name: str) -> ObjectiveFunction:
    function = load_function(name, "objective")

    def checked(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
        return _checked(name, function, logits, targets, content, options)

    return checked


def _checked(
    name: str, function: Callable[..., Any], logits: Logits, targets: Tensor, content: Tensor, options: D2ESection
) -> dict[str, Tensor]:
    """What the function returns, with its own errors but for a view that it is not given."""
    try:
        terms = function(logits, targets, content, options)
    except KeyError as error:
        if error.args[0] not in ("original", "imagined", "refined"):
            raise
        raise UserError(
            f"d2e.objective={name}: the function reads the view {error.args[0]!r}, and is given {', '.join(logits)}",
            remedy=f"set d2e.own_views=[{','.join([*logits, error.args[0]])}]",
        ) from None
    rows = len(targets)
    expected = f"a dict from a term's name to a tensor of shape ({rows},), nats of each answer token"
    if not isinstance(terms, dict) or not terms:
        raise UserError(f"d2e.objective={name}: returned {_described(terms)}; expected {expected}")
    if taken := _TAKEN & terms.keys():
        raise UserError(
            f"d2e.objective={name}: a term is named {min(taken)!r}, as something else in the log is; "
            "expected a name of its own"
        )
    for key, term in terms.items():
        if not isinstance(key, str) or not isinstance(term, Tensor) or term.shape != targets.shape:
            raise UserError(f"d2e.objective={name}: the term {key!r} is {_described(term)}; expected {expected}")
        # A fake tensor (of the estimate of memory) has no values.
        if not isinstance(term, FakeTensor) and not torch.isfinite(term).all():
            where = int((~torch.isfinite(term)).nonzero()[0, 0])
            raise UserError(
                f"d2e.objective={name}: the term {key!r} is {float(term[where])} at answer token {where} of {rows}; "
                "expected finite numbers"
            )
    return terms


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.60}, a {type(value).__name__}"

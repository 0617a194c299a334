"""Your own objective: a function named in the recipe, `d2e.objective=module:function`.

    import torch.nn.functional as F

    def my_loss(logits, targets, content, options):
        return {"ce": F.cross_entropy(logits["original"], targets, reduction="none")}

in `my_objectives.py` is `d2e.objective=my_objectives:my_loss`; see `objectives` for arguments and result. The module
is an installed one or a file in the folder where training starts. `d2e.own_views` lists the views that the function
gets: the original and the imagined one by default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.config.objectives import is_own
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import FUNCTIONS, Logits, ObjectiveFunction
from d2e_sft.util.errors import UserError
from d2e_sft.util.functions import load_function

_LOGGED = {
    *("loss", "correct", "plain_correct", "imagined_correct", "debiased_accuracy", "plain_accuracy", "bias_share"),
    *("sample_weight", "alpha", "tokens_per_second", "memory_gib", "grad_norm", "learning_rate", "epoch", "step"),
}


def function_of(d2e: D2ESection) -> ObjectiveFunction:
    """Return the function that the recipe names; the result of a user's own function is checked at each call.

    Raises:
        UserError: there is no such function.
    """
    return _own(d2e.objective) if is_own(d2e.objective) else FUNCTIONS[d2e.objective]


@cache
def _own(name: str) -> ObjectiveFunction:
    return partial(_checked, name, load_function(name, "objective"))


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
    rows = len(targets)
    expected = f"a dict from the name of a term to a tensor of shape ({rows},), nats for each answer token"
    if not isinstance(terms, dict) or not terms:
        raise UserError(f"d2e.objective={name}: returned {_described(terms)}; expected {expected}")
    for key, term in terms.items():
        if key in _LOGGED:
            raise UserError(
                f"d2e.objective={name}: the term name {key!r} is already used in the log; use another name"
            )
        if not isinstance(term, Tensor) or term.shape != targets.shape:
            raise UserError(f"d2e.objective={name}: the term {key!r} is {_described(term)}; expected {expected}")
        # The memory estimate calls this with fake tensors, which have no values.
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

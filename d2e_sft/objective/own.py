"""An objective of the user's own: a function named in the recipe, `d2e.objective=module:function`.

    import torch.nn.functional as F

    def my_loss(logits, targets, content, options):
        return {"ce": F.cross_entropy(logits["original"], targets, reduction="none")}

in `my_objectives.py` is `d2e.objective=my_objectives:my_loss`; arguments and result as in `objectives`. The module is
looked for in the folder that training is started from, then among what is installed. `d2e.own_views` says which views
it is given, the original and the imagined one by default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.config.objectives import is_own
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import FUNCTIONS, Logits, ObjectiveFunction
from d2e_sft.util.errors import UserError, did_you_mean


def function_of(d2e: D2ESection) -> ObjectiveFunction:
    """The function that a recipe's objective names.

    Raises:
        UserError: a function of the user's own that is not there; what it returns is checked at each call.
    """
    return _own(d2e.objective) if is_own(d2e.objective) else FUNCTIONS[d2e.objective]


@cache
def _own(name: str) -> ObjectiveFunction:
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"d2e.objective={name}: cannot import {module_name!r} ({error})",
            remedy=f"start training in the folder that holds {module_name.partition('.')[0]}, or install it",
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(
            f"d2e.objective={name}: {module_name!r} has no function {function_name!r}."
            f"{did_you_mean(function_name, known)}"
        )

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

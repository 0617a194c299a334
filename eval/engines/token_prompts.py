"""The prompts of a task as token ids, fitted to the model's context; for the engines that take tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.errors import UserError
from d2e_sft.recipe import View
from d2e_sft.views import ViewEncoder
from eval.engines.engine import Task


@dataclass(frozen=True)
class TokenPrompts:
    """Token ids of each sample's prompts.

    Attributes:
        originals: what is answered; in a pass without context the imagined prompts.
        imagined: what is subtracted; None where nothing is.
        truncated: places of the samples whose contexts were cut.
        end_of_turn: the token that ends an answer.
    """

    originals: list[list[int]]
    imagined: list[list[int]] | None
    truncated: frozenset[int]
    end_of_turn: int


def token_prompts(tokenizer: Any, task: Task, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
    """Encode a task's prompts.

    Args:
        limit: positions of the model; those of a decoder-only model hold the answer, too. None is no limit.

    Raises:
        UserError: a tokenizer without a chat template, or prompts beyond the limit that may not or cannot be cut.
    """
    view: View = "imagined" if task.without_context else "original"
    views: tuple[View, ...] = (view, "imagined") if task.alpha > 0 else (view,)
    encoder = ViewEncoder(tokenizer, task.wording, views, encoder_decoder=encoder_decoder)
    originals = encoder.all_prompt_ids(task.samples, view)
    budget = None if limit is None else limit - (0 if encoder_decoder else task.max_new_tokens)
    truncated = _fit(encoder, task, view, originals, budget)
    imagined = encoder.all_prompt_ids(task.samples, "imagined") if task.alpha > 0 else None
    return TokenPrompts(originals, imagined, frozenset(truncated), encoder.end_of_turn)


def _fit(encoder: ViewEncoder, task: Task, view: View, prompts: list[list[int]], budget: int | None) -> list[int]:
    """Cut the contexts of prompts beyond the budget, in place; their indices."""
    if budget is None:
        return []
    too_long = [i for i, prompt in enumerate(prompts) if len(prompt) > budget]
    if not too_long:
        return []
    if task.overlong == "error":
        raise _too_long(task, prompts, too_long, budget, "")
    for i in too_long:
        prompts[i] = encoder.prompt_ids(task.samples[i], view, max(budget, 0))
    still = [i for i in too_long if len(prompts[i]) > budget]
    if still:
        raise _too_long(task, prompts, still, budget, " even without their contexts")
    return too_long


def _too_long(task: Task, prompts: Sequence[list[int]], which: Sequence[int], budget: int, how: str) -> UserError:
    longest = max(which, key=lambda i: len(prompts[i]))
    remedy = "lower --max-new-tokens, or use a model with a longer context"
    if not how:
        remedy = f"cut the ends of those contexts with --overlong truncate_context, {remedy}"
    elif task.wording.setting == "few_shot":
        remedy = f"give shorter --demonstrations, {remedy}"
    return UserError(
        f"{len(which)} of {len(task.samples)} samples exceed the model's context{how}: prompts may have {budget} "
        f"tokens beside {task.max_new_tokens} new ones, and the longest, {task.samples[longest].id!r} of "
        f"{task.samples[longest].dataset!r}, has {len(prompts[longest])}",
        remedy,
    )

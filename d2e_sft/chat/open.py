"""Open a model for a conversation, with wording and decoding from its recipe by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from d2e_sft.chat.conversation import Conversation, Wording
from d2e_sft.config.decoding import DecodingConfig, given_decoder
from d2e_sft.config.recipe import EvalSection, ModelSection, Recipe, recipe_of
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.device import automatic_dtype, usable_device
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class ChatOptions:
    """Options of a call; None: as in the run's recipe, else the default for a model without a run.

    Attributes:
        alpha, decoder: as for `d2e eval`; α is 0.5 for a model without a run.
        max_new_tokens: longest answer.
        wording: `qa` words questions as the prompt set does, `none` leaves them as they are; None: `qa` for a run.
        system: system message that replaces the prompt set's.
        dtype: of the weights; `auto` is bfloat16 if this machine computes it fast.
    """

    alpha: float | None = None
    decoder: str | None = None
    max_new_tokens: int | None = None
    wording: Literal["qa", "none"] | None = None
    prompt_set: str | None = None
    system: str | None = None
    dtype: str | None = None


def open_conversation(model: str, options: ChatOptions) -> Conversation:
    """Load a model for a conversation that has no context yet.

    Raises:
        UserError: no such model, prompt set or decoder, conflicting options, or a model without a chat template.
    """
    recipe = recipe_of(model)
    section, own = (ModelSection(), EvalSection()) if recipe is None else (recipe.model, recipe.eval)
    default = DecodingConfig() if recipe is None else recipe.decoding
    decoding = DecodingConfig(
        **given_decoder(options.decoder, options.alpha, default.alpha),
        max_new_tokens=options.max_new_tokens or own.max_new_tokens,
    )
    wording = _wording(recipe, options)
    dtype = options.dtype or section.dtype
    if dtype == "auto":
        dtype = automatic_dtype()
    loaded = load_model(model, dtype=dtype, attention=section.attention)
    loaded.model.to(usable_device()).eval()
    return Conversation(loaded, decoding, wording)


def _wording(recipe: Recipe | None, options: ChatOptions) -> Wording:
    how = options.wording or ("none" if recipe is None else "qa")
    if how == "none":
        if options.prompt_set is not None:
            raise UserError(
                f"--prompt-set {options.prompt_set}: has no effect on questions that are sent as they are",
                remedy="drop it, or add --wording qa",
            )
        return Wording(system=options.system or "")
    prompt_set = load_prompt_set(options.prompt_set or ("default" if recipe is None else recipe.data.prompt_set))
    if "qa" not in prompt_set.zero_shot:
        if options.wording is None:
            return Wording(system=options.system or "")
        raise UserError(f"--wording qa: prompt set {prompt_set.name!r} has no prompt for qa", "use --wording none")
    prompt = prompt_set.zero_shot["qa"]
    return Wording(prompt.system if options.system is None else options.system, prompt.context, prompt.user)

"""How many tokens a model was made for, and whether samples fit."""

from __future__ import annotations

from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn


def position_limit(config: Any) -> int | None:
    """Positions of a transformers model, from its config; None where it states none."""
    limit: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit


def check_positions(config: Any, longest: int) -> None:
    """Compare the tokens of the longest sample with the positions that a model has.

    Rotary positions go on beyond what the model was trained on, so that is a warning; learned ones end.

    Raises:
        UserError: a sample is longer than the model's table of learned positions.
    """
    if config.is_encoder_decoder:
        return  # positions are relative, or the model's own forward complains
    text = config.get_text_config()
    limit = position_limit(config)
    if limit is None or longest <= limit:
        return
    message = f"the longest sample has {longest} tokens and {text.model_type} models of this size {limit} positions"
    remedy = f"set data.max_length={limit}, and data.overlong to drop or truncate_context"
    if getattr(text, "rope_parameters", None):
        warn(f"{message}, beyond which it was not trained; {remedy}")
    else:
        raise UserError(message, remedy)

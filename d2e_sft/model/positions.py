"""The number of positions of a model, and whether samples fit."""

from __future__ import annotations

from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn


def position_limit(config: Any) -> int | None:
    """Return the number of positions in a transformers config, or None."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def check_answer_fits(limit: int | None, new_tokens: int) -> None:
    """Raise a UserError if an answer may be longer than a model's positions, which hold prompt and answer."""
    if limit is not None and new_tokens >= limit:
        raise UserError(
            f"--max-new-tokens {new_tokens:,}: the model has {limit:,} positions for prompt and answer together",
            remedy="lower it",
        )


def check_positions(config: Any, longest: int) -> None:
    """Warn if the longest sample exceeds a model's rotary positions, which extend beyond training.

    Raises:
        UserError: the sample is longer than the model's table of learned positions.
    """
    if config.is_encoder_decoder:
        return  # relative positions, or the model's own forward raises
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

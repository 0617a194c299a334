"""A chat request with its context in a field of its own: what both servers of `d2e serve` make of it.

The original prompt has the context before the last user message, in the prompt set's context line of a format. The
imagined prompt is the messages, unchanged.
"""

import copy
import logging
from typing import Annotated, Any

from pydantic import BaseModel, Field

from d2e_sft.config.decoding import DECODERS, MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import Format
from d2e_sft.util.errors import UserError

_log = logging.getLogger(__name__)

Alpha = Annotated[float, Field(ge=0, le=MAX_ALPHA, allow_inf_nan=False, strict=True)]


class RequestError(UserError):
    """A request that cannot be answered; `parameter` is its field."""

    def __init__(self, message: str, parameter: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.status = status


class ContextFields(BaseModel):
    """The fields that OpenAI's chat request lacks; None is the server's own, unless another meaning is given.

    Attributes:
        context: The part that the imagined prompt omits; None: a plain request.
        alpha: The debias ratio of the decoder `d2e`.
        decoder: `NAME` or `NAME:KEY=VALUE,…` (see `d2e_sft.config.decoding`); None: `d2e` if there is an `alpha`,
            else the server's.
        plausibility: Only tokens with at least this share of the original prompt's best probability.
        format: Of the prompt set's context line.
    """

    context: str | None = None
    alpha: Alpha | None = None
    decoder: str | None = None
    plausibility: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, strict=True)
    format: Format | None = None


def needs_context(fields: ContextFields) -> None:
    """Raise RequestError if fields of a request without a context need one."""
    if fields.context is None and any(
        value is not None for value in (fields.alpha, fields.decoder, fields.plausibility)
    ):
        raise RequestError("alpha, decoder and plausibility need a context to debias", "context")


def chosen_decoding(fields: ContextFields, default: DecodingConfig) -> DecodingConfig:
    """Return the decoding of a request, which may name a decoder, an α, or neither; RequestError for a wrong one."""
    if fields.decoder is None and fields.alpha is None:
        return default
    try:
        chosen = DecodingConfig(**given_decoder(fields.decoder, fields.alpha, default.alpha))
    except UserError as error:
        raise RequestError(error.one_line, "decoder") from None
    if fields.decoder is not None and chosen.decoder.partition(":")[0] not in DECODERS:
        raise RequestError(
            f"decoder {fields.decoder}: custom functions are not supported in requests; "
            f"expected {', '.join(DECODERS)}",
            "decoder",
        )
    return chosen


def with_system(messages: list[dict[str, Any]], system: str) -> list[dict[str, Any]]:
    """Return messages that begin with a system message, unless they have one or it is empty."""
    if not system or any(message.get("role") in ("system", "developer") for message in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


def with_context(
    messages: list[dict[str, Any]],
    fields: ContextFields,
    chosen: DecodingConfig,
    prompt_set: PromptSet,
    format: Format,
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a request's messages with its context, and why it is decoded plainly (the header's value), or None.

    An empty context is left out and logged. `format` is for requests that name none.
    """
    if not (fields.context or "").strip():
        _log.warning("chat request with an empty context: decoded plainly")
        return messages, "empty context"
    reason = None
    if not chosen.needs_imagined:
        reason = "alpha is 0" if chosen.decoder == "d2e" else "decoder is plain"
    fmt = fields.format or format
    if fmt not in prompt_set.zero_shot:
        raise RequestError(f"format: prompt set {prompt_set.name!r} has no {fmt!r}", "format")
    # The prompt set's context line, as in training and evaluation, before the text of the user's last message.
    line = prompt_set.zero_shot[fmt].context.replace("{context}", fields.context or "")
    changed = copy.deepcopy(messages)
    last = next((message for message in reversed(changed) if message.get("role") == "user"), None)
    if last is None:
        raise RequestError("messages: expected a user message, which the context precedes", "messages")
    content = last.get("content")
    if isinstance(content, list):
        text = next((part for part in content if isinstance(part, dict) and part.get("type") == "text"), None)
        if text is None:
            content.insert(0, {"type": "text", "text": line})
        else:
            text["text"] = line + str(text.get("text", ""))
    else:
        last["content"] = line + str(content or "")
    return changed, reason

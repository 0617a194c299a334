"""OpenAI's requests and answers, as far as decoding in this process supports them, and a context in a chat request.

Fields without effect are ignored. A field that would change the answer and is not supported is an error. Both servers
of `d2e serve` take the context in a field of its own: the original prompt has it before the last user message, in the
prompt set's context line of a format. The imagined prompt is the messages, unchanged.
"""

from __future__ import annotations

import copy
import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from d2e_sft.config.decoding import DECODERS, MAX_ALPHA, DecodingConfig, given_decoder
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import Format
from d2e_sft.util.errors import UserError, describe_validation_error, shortened

_log = logging.getLogger(__name__)

Alpha = Annotated[float, Field(ge=0, le=MAX_ALPHA, allow_inf_nan=False, strict=True)]
Finish = Literal["stop", "length"]
WITHOUT_EFFECT = frozenset({"metadata", "parallel_tool_calls", "service_tier", "store", "user"})
# Field → its values that ask for nothing.
_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
    "chat_template_kwargs": ({}, {"enable_thinking": False}),
}
_LEAST_TEMPERATURE = 1e-5  # below it vLLM is greedy, too
# Status → the `type` of an error, beside 400 and 500.
_KINDS = {401: "Unauthorized", 404: "NotFoundError", 413: "RequestEntityTooLarge", 429: "TooManyRequests"}


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


def chosen_decoding(fields: ContextFields, default: DecodingConfig) -> DecodingConfig:
    """Return the decoding of a request, which may name a decoder, an α, or neither.

    Raises RequestError for a wrong one, or one without a context.
    """
    if fields.context is None and {fields.alpha, fields.decoder, fields.plausibility} != {None}:
        raise RequestError("alpha, decoder and plausibility need a context to debias", "context")
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


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part]


class ApiRequest(BaseModel):
    """What both routes take; None is the model's own default, or the server's.

    Attributes:
        max_tokens: Longest answer, at most what the model's positions leave.
        stop: Texts that end an answer and are no part of it.
    """

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = []
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()

    def sampling(self, defaults: Any) -> dict[str, Any]:
        """Return the arguments for `DecodingConfig`; `defaults` is the model's generation config, as in vLLM."""
        values: dict[str, Any] = {}
        for name, fallback in (("temperature", 1.0), ("top_p", 1.0), ("top_k", 0)):
            options = (getattr(self, name), getattr(defaults, name, None), fallback)
            values[name] = next(value for value in options if value is not None)
        greedy = values["temperature"] < _LEAST_TEMPERATURE
        seed = uuid.uuid4().int % (1 << 31) if self.seed is None else self.seed
        return {"temperature": 0.0} if greedy else {**values, "top_k": max(0, values["top_k"]), "seed": seed}


class ChatRequest(ContextFields, ApiRequest):
    """`POST /v1/chat/completions`."""

    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: Literal[False] = False


class CompletionRequest(ApiRequest):
    """`POST /v1/completions`; `echo` returns log-probabilities of a prompt's tokens and never a new token."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(min_length=1)
    max_tokens: int | None = Field(default=16, ge=0)
    echo: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=1)

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt


R = TypeVar("R", bound=ApiRequest)


def read_request(kind: type[R], body: bytes) -> R:
    """Read and check a body that `BodyCheck` has let pass; RequestError with the first wrong fields."""
    content = json.loads(body or b"null")
    if not isinstance(content, dict):
        raise RequestError(f"the body is {shortened(content, 60)}; expected an object")
    fields = {name: value for name, value in content.items() if value is not None and name not in WITHOUT_EFFECT}
    for name, neutral in _UNSUPPORTED.items():
        value = fields.pop(name, neutral[0])
        if value not in neutral:
            message = f"{name}={shortened(value, 60)}: not supported by --engine transformers; leave it out"
            raise RequestError(message, name)
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]["loc"]
        raise RequestError(describe_validation_error(error), str(first[0]) if first else None) from None


class ApiReply:
    """The forms of one answer: whole, or chunk by chunk."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        name = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._head: dict[str, Any] = {"id": name, "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[Mapping[str, Any]], prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        """Return the answer to a request without `stream`."""
        usage = usage_of(prompt_tokens, new_tokens)
        return {**self._head, "object": self._kind, "choices": list(choices), "usage": usage}

    def choice(self, index: int, text: str, finish: Finish | None, logprobs: Any = None) -> dict[str, Any]:
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def chunk(self, index: int, text: str, finish: Finish | None, *, first: bool) -> bytes:
        """Return one event of a stream, with the next piece of a choice."""
        choice = self.choice(index, text, finish)
        if self._chat:
            del choice["message"]
            role = {"role": "assistant"} if first else {}
            choice["delta"] = {**role, "content": text} if text or first else {}
        return self._event(choices=[choice])

    def last(self, prompt_tokens: int, new_tokens: int) -> bytes:
        """Return the event with the usage, if it was asked for."""
        return self._event(choices=[], usage=usage_of(prompt_tokens, new_tokens))

    def _event(self, **content: Any) -> bytes:
        return event({**self._head, "object": f"{self._kind}{'.chunk' * self._chat}", **content})


def usage_of(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
    total = prompt_tokens + new_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": new_tokens, "total_tokens": total}


def event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def error_body(message: str, status: int, parameter: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    kind = _KINDS.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}

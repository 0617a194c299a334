"""The chat route of `d2e serve`: requests with the context in a field of its own.

`POST /v1/chat/completions` takes more fields than OpenAI's. The original prompt has `context` before the last user
message, in the prompt set's context line of `format`; the imagined prompt is the messages, unchanged. `alpha` is the
debias ratio, `decoder` another way to combine both, `plausibility` the cut-off. Requests without `context` go to vLLM
unchanged. Streaming, usage, stop strings and errors are always vLLM's.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import Field
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

from d2e_sft.config.decoding import DecodingConfig, given_decoder
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import Format
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.pairing import Alpha, check_decoder
from d2e_sft.vllm.server.pair_request import ALPHA, DECODER, IMAGINED, PLAUSIBILITY

_log = logging.getLogger(__name__)


class DebiasedChatRequest(ChatCompletionRequest):
    """OpenAI's chat request with a separate context.

    Attributes:
        context: the part that the imagined prompt omits; None: a plain request.
        alpha: the debias ratio of the decoder `d2e`; None: the server's.
        decoder: `NAME` or `NAME:KEY=VALUE,…` (see `d2e_sft.config.decoding`); None: `d2e` if there is an `alpha`,
            else the server's.
        plausibility: only tokens with at least this share of the original prompt's best probability.
        format: of the prompt set's context line; None: the server's.
    """

    context: str | None = None
    alpha: Alpha | None = None
    decoder: str | None = None
    plausibility: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, strict=True)
    format: Format | None = None


def add_chat_route(app: FastAPI, *, prompt_set: PromptSet, format: Format, decoding: DecodingConfig) -> None:
    """Put the route before vLLM's route of the same path.

    `app` is vLLM's, with a `PairingEngine` as its engine client. `prompt_set` and `format` word the context;
    `decoding` is for requests that name no decoder.
    """
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(request: DebiasedChatRequest, raw_request: Request) -> Any:
        if request.context is None:
            if any(value is not None for value in (request.alpha, request.decoder, request.plausibility)):
                raise VLLMValidationError(
                    "alpha, decoder and plausibility need a context to debias", parameter="context"
                )
            return await create_chat_completion(request, raw_request)
        chosen = _chosen(request, decoding)
        body = await raw_request.json()
        if not request.context.strip():
            _log.warning("chat request with an empty context: decoded plainly")
            return _note(await create_chat_completion(_plain(body, body["messages"]), raw_request), "empty context")
        line = context_line(prompt_set, request.format or format, request.context)
        original = with_context(body["messages"], line)
        if not chosen.needs_imagined:
            reason = "alpha is 0" if chosen.decoder == "d2e" else "decoder is plain"
            return _note(await create_chat_completion(_plain(body, original), raw_request), reason)
        imagined = await _imagined_tokens(raw_request, body)
        if isinstance(imagined, Response):
            return imagined
        extra = {
            IMAGINED: imagined,
            ALPHA: float(chosen.alpha),
            DECODER: chosen.decoder,
            PLAUSIBILITY: float(request.plausibility or 0.0),
        }
        return await create_chat_completion(_pair(request, body, original, extra), raw_request)

    count = len(app.router.routes)
    app.include_router(router)
    app.router.routes[:] = app.router.routes[count:] + app.router.routes[:count]  # the first route of a path is taken


def _chosen(request: DebiasedChatRequest, default: DecodingConfig) -> DecodingConfig:
    """The decoding of a request, which may name a decoder, an α, or neither."""
    if request.decoder is None and request.alpha is None:
        return default
    try:
        if request.decoder is not None:
            check_decoder(request.decoder)
        return DecodingConfig(**given_decoder(request.decoder, request.alpha, default.alpha))
    except UserError as error:
        raise VLLMValidationError(error.message, parameter="decoder") from None


def context_line(prompt_set: PromptSet, fmt: Format, context: str) -> str:
    """The prompt set's context line, as in training and evaluation."""
    if fmt not in prompt_set.zero_shot:
        raise VLLMValidationError(f"format: prompt set {prompt_set.name!r} has no {fmt!r}", parameter="format")
    return prompt_set.zero_shot[fmt].context.replace("{context}", context)


def with_context(messages: list[dict[str, Any]], line: str) -> list[dict[str, Any]]:
    """Put the context line before the text of the user's last message; VLLMValidationError without one."""
    changed = copy.deepcopy(messages)
    asked = next((message for message in reversed(changed) if message.get("role") == "user"), None)
    if asked is None:
        raise VLLMValidationError("messages: expected a user message, which the context precedes")
    content = asked.get("content")
    if isinstance(content, list):
        text = next((part for part in content if isinstance(part, dict) and part.get("type") == "text"), None)
        if text is None:
            content.insert(0, {"type": "text", "text": line})
        else:
            text["text"] = line + str(text.get("text", ""))
    else:
        asked["content"] = line + str(content or "")
    return changed


def _plain(body: dict[str, Any], messages: list[dict[str, Any]]) -> ChatCompletionRequest:
    own = set(DebiasedChatRequest.model_fields) - set(ChatCompletionRequest.model_fields)
    rest = {name: value for name, value in body.items() if name not in own}
    return ChatCompletionRequest.model_validate({**rest, "messages": messages})


def _pair(
    request: DebiasedChatRequest, body: dict[str, Any], messages: list[dict[str, Any]], extra: dict[str, Any]
) -> ChatCompletionRequest:
    if request.use_beam_search:
        raise VLLMValidationError(
            "use_beam_search: debiased decoding is greedy or sampled", parameter="use_beam_search"
        )
    if (request.n or 1) > 1:
        raise VLLMValidationError(f"n={request.n}: debiased decoding gives one answer a request", parameter="n")
    pair = _plain(body, messages)
    pair.vllm_xargs = {**(pair.vllm_xargs or {}), **extra}
    # Ignores a penalty in the model's generation config.
    pair.repetition_penalty = 1.0 if pair.repetition_penalty is None else pair.repetition_penalty
    return pair


async def _imagined_tokens(raw_request: Request, body: dict[str, Any]) -> list[int] | Response:
    """The imagined prompt as vLLM's chat code renders it, or its error response."""
    from fastapi.responses import JSONResponse

    handler = raw_request.app.state.openai_serving_chat
    rendered = await handler.render_chat_request(_plain(body, copy.deepcopy(body["messages"])))
    if isinstance(rendered, ErrorResponse):
        return JSONResponse(rendered.model_dump(), status_code=rendered.error.code)
    _, (prompt,) = rendered
    if prompt.get("type") != "token":
        raise VLLMValidationError("context: needs text messages, without images or audio", parameter="context")
    return list(prompt["prompt_token_ids"])


def _note(response: Response, reason: str) -> Response:
    if response is not None:  # None: the client has left
        response.headers["X-D2E-Decoding"] = f"plain ({reason})"
    return response

"""The chat route of `d2e serve`: requests with the context in a field of its own.

`POST /v1/chat/completions` takes more fields than OpenAI's (`d2e_sft/server/openai.py`). Requests without `context`
go to vLLM, with the run's system message if they have none. Streaming, usage, stop strings and errors are vLLM's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.exceptions import VLLMValidationError

from d2e_sft.data.prompts import PromptSet
from d2e_sft.server.openai import (
    WITHOUT_EFFECT,
    ContextFields,
    RequestError,
    chosen_decoding,
    with_context,
    with_system,
)
from d2e_sft.server.start import ServeOptions
from d2e_sft.util.errors import shortened
from d2e_sft.vllm.server.online import ALPHA, DECODER, IMAGINED, PLAUSIBILITY


class DebiasedChatRequest(ContextFields, ChatCompletionRequest):
    """OpenAI's chat request with a separate context; vLLM's base class keeps unknown fields in `model_extra`."""


def add_chat_route(app: FastAPI, prompt_set: PromptSet, options: ServeOptions) -> None:
    """Put the route before vLLM's of the same path; the options are for requests that leave something open."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(request: DebiasedChatRequest, raw_request: Request) -> Any:
        with _as_vllms():
            for name, value in (request.model_extra or {}).items():
                if value is not None and name not in WITHOUT_EFFECT:
                    raise RequestError(f"{name}: got {shortened(value)}; Extra inputs are not permitted", name)
            chosen = chosen_decoding(request, options.decoding)
        sent = await raw_request.json()
        system = options.system_of(prompt_set, request.format or options.format)
        body = {**sent, "messages": with_system(sent["messages"], system)}
        if request.context is None:
            unchanged = body["messages"] is sent["messages"]
            return await create_chat_completion(request if unchanged else _plain(body, body["messages"]), raw_request)
        with _as_vllms():
            original, reason = with_context(body["messages"], request, chosen, prompt_set, options.format)
        if reason is not None:
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


@contextmanager
def _as_vllms() -> Iterator[None]:
    """Turn a RequestError into vLLM's own error, which its server answers with 400."""
    try:
        yield
    except RequestError as error:
        raise VLLMValidationError(error.message, parameter=error.parameter) from None


def _plain(body: dict[str, Any], messages: list[dict[str, Any]]) -> ChatCompletionRequest:
    rest = {name: value for name, value in body.items() if name not in ContextFields.model_fields}
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
    """Return the imagined prompt as vLLM's chat code renders it, or its error response."""
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

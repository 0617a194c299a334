"""The routes of `d2e serve --engine transformers`, as a Starlette app."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from torch import Tensor

from d2e_sft.decoding.pairs import Tokens
from d2e_sft.decoding.rows import decodes_packed
from d2e_sft.model.forward import head_of, hidden_states
from d2e_sft.server.limits import BodyCheck, KeyCheck, PageCheck
from d2e_sft.server.openai import (
    ApiReply,
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    Finish,
    RequestError,
    error_body,
    event,
    read_request,
)
from d2e_sft.server.prompts import Prompts
from d2e_sft.server.queue import BatchQueue, Prompt
from d2e_sft.server.start import ServeOptions

_DONE = b"data: [DONE]\n\n"
_AT_ONCE = 256  # tokens of a prompt whose distributions are in memory at once


def build_app(
    name: str,
    prompts: Prompts,
    queue: BatchQueue,
    options: ServeOptions,
    *,
    more: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the app that serves a model under its `name` or those of the options; `more` routes come first."""
    api = _Api(options.served_model_name or (name,), prompts, queue)
    routes = [
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/models", api.models),
        Route("/health", lambda request: Response()),
    ]
    middleware = [Middleware(PageCheck, options=options)]
    if options.allow_origins:  # around the key, which a browser leaves out of its first question
        pages: Any = {"allow_origins": options.allow_origins, "expose_headers": ["X-D2E-Decoding"]}
        middleware += [Middleware(CORSMiddleware, allow_methods=["GET", "POST"], allow_headers=["*"], **pages)]
    if options.api_key is not None:  # around the body, so that those of unauthorised clients are not read
        middleware += [Middleware(KeyCheck, key=options.api_key)]
    middleware += [Middleware(BodyCheck, max_bytes=options.max_body_bytes)]
    answered: Any = {RequestError: _refused, HTTPException: _http_error}
    return Starlette(routes=[*more, *routes], middleware=middleware, exception_handlers=answered)


class _Api:
    def __init__(self, names: Sequence[str], prompts: Prompts, queue: BatchQueue) -> None:
        self._names, self._prompts, self._queue = names, prompts, queue

    async def models(self, request: HttpRequest) -> Response:
        models = [{"id": name, "object": "model", "owned_by": "d2e"} for name in self._names]
        return JSONResponse({"object": "list", "data": models})

    async def chat(self, request: HttpRequest) -> Response:
        body = await self._read(request, ChatRequest)
        self._queue.check_room(1)
        prompt, reason = self._prompts.of_chat(body)
        answer = await self._answer(request, body, [prompt], ApiReply(self._names[0], chat=True))
        if reason is not None:
            answer.headers["X-D2E-Decoding"] = f"plain ({reason})"
        return answer

    async def completions(self, request: HttpRequest) -> Response:
        body = await self._read(request, CompletionRequest)
        self._queue.check_room(len(body.prompts))  # before they are tokenized
        reply = ApiReply(self._names[0], chat=False)
        if body.echo:
            return await self._echo(request, body, reply)
        if body.logprobs is not None or not body.max_tokens:
            raise RequestError("logprobs and max_tokens=0: only supported with echo; leave them out", "logprobs")
        return await self._answer(request, body, self._prompts.of_completion(body), reply)

    async def _read(self, request: HttpRequest, kind: type[Any]) -> Any:
        body = read_request(kind, await request.body())
        if body.model not in (None, *self._names):
            expected = " or ".join(map(repr, self._names))
            raise RequestError(f"model {body.model!r}: not served; expected {expected}", "model", status=404)
        return body

    async def _answer(
        self, request: HttpRequest, body: ApiRequest, prompts: Sequence[Prompt], reply: ApiReply
    ) -> Response:
        if body.stream:
            events = self._events(prompts, reply, with_usage=body.stream_options.include_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return await _unless_left(request, self._whole(prompts, reply))

    async def _whole(self, prompts: Sequence[Prompt], reply: ApiReply) -> dict[str, Any]:
        texts, ends = [""] * len(prompts), dict[int, Finish | None]()
        tokens = [0] * len(prompts)
        async with aclosing(self._queue.answers(prompts)) as pieces:
            async for piece in pieces:
                texts[piece.index] += piece.text
                tokens[piece.index], ends[piece.index] = piece.tokens, piece.finish
        choices = [reply.choice(index, text, ends[index]) for index, text in enumerate(texts)]
        return reply.whole(choices, _prompt_tokens(prompts), sum(tokens))

    async def _events(self, prompts: Sequence[Prompt], reply: ApiReply, *, with_usage: bool) -> AsyncIterator[bytes]:
        tokens = [0] * len(prompts)
        started: set[int] = set()
        try:
            async with aclosing(self._queue.answers(prompts)) as pieces:
                async for piece in pieces:
                    yield reply.chunk(piece.index, piece.text, piece.finish, first=piece.index not in started)
                    started.add(piece.index)
                    tokens[piece.index] = piece.tokens
            if with_usage:
                yield reply.last(_prompt_tokens(prompts), sum(tokens))
        except RequestError as error:
            yield event(error_body(error.message, error.status, error.parameter))
        yield _DONE

    async def _echo(self, request: HttpRequest, body: CompletionRequest, reply: ApiReply) -> Response:
        """The log-probabilities of prompts, with which clients score given answers; no new tokens."""
        if body.logprobs is None or body.stream or (body.max_tokens or 0) > 1:
            raise RequestError("echo: only supported with logprobs, max_tokens 0 or 1, and without stream", "echo")
        return await _unless_left(request, self._scored(self._prompts.of_echo(body), reply))

    async def _scored(self, prompts: Sequence[Tokens], reply: ApiReply) -> dict[str, Any]:
        logprobs = await self._queue.call(prompt_logprobs, prompts)
        choices = [
            reply.choice(index, "", "length", {"token_logprobs": values}) for index, values in enumerate(logprobs)
        ]
        return reply.whole(choices, sum(map(len, prompts)), 0)


@torch.inference_mode()
def prompt_logprobs(model: Any, tokens: Sequence[int]) -> list[float | None]:
    """Return the plain log-probability of each token after those before it; None for the first."""
    ids = torch.tensor([tokens], device=model.device)
    project: Callable[[Tensor], Tensor] = Tensor.float
    if decodes_packed(model):  # its head is known
        states, (project, _) = hidden_states(model, input_ids=ids)[0, :-1], head_of(model)
    else:
        states = model(input_ids=ids, use_cache=False).logits[0, :-1]
    logprobs: list[float] = []
    for part, targets in zip(states.split(_AT_ONCE), ids[0, 1:, None].split(_AT_ONCE), strict=True):
        logprobs += project(part).float().log_softmax(-1).gather(-1, targets)[:, 0].tolist()
    if not all(map(math.isfinite, logprobs)):
        raise RequestError("a log-probability of the prompt is NaN or infinite", status=500)
    return [None, *logprobs]


def _prompt_tokens(prompts: Sequence[Prompt]) -> int:
    return sum(len(prompt.pair.original) for prompt in prompts)


async def _unless_left(request: HttpRequest, answer: Awaitable[dict[str, Any]]) -> Response:
    """Stop computing an answer if the client leaves."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(answer), asyncio.ensure_future(left())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(tasks[0].result()) if tasks[0].done() else Response(status_code=499)
    finally:
        for task in tasks:
            task.cancel()


async def _refused(request: HttpRequest, error: RequestError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error_body(error.message, error.status, error.parameter), error.status, headers)


async def _http_error(request: HttpRequest, error: HTTPException) -> Response:
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_body(message, error.status_code), error.status_code)

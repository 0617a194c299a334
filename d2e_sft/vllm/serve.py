"""`d2e serve`: vLLM's OpenAI-compatible server with paired requests, in this process; the engine has its own.

The app, its routes and its options are vLLM's. Added are the engine client that takes pairs, the chat route with a
context, limits on bodies and the queue, and defaults that are safe on a machine with other users.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from argparse import Namespace
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import Format
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import model_folder, require_vllm, unregistered_plugin

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class ServeOptions:
    """What the server does besides vLLM's own options.

    Attributes:
        host: address to listen on.
        port: to listen on.
        api_key: clients must send it as a bearer token; None: anyone may ask.
        decoding: the decoder of requests that name none.
        prompt_set: whose context line is put around a context.
        format: which of its formats.
        max_body_bytes: larger requests are refused.
        engine_arguments: vLLM's own command-line options.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    decoding: DecodingConfig = DecodingConfig()
    prompt_set: str = "default"
    format: Format = "qa"
    max_body_bytes: int = 4 * 1024 * 1024
    engine_arguments: tuple[str, ...] = ()


def serve(model: str, options: ServeOptions) -> None:
    """Serve a model until the process is told to stop.

    Args:
        model: as for `load_llm`.

    Raises:
        UserError: vLLM or FastAPI is missing, no such model, or the engine cannot decode pairs.
    """
    require_vllm()
    missing = [module for module in ("fastapi", "uvicorn") if find_spec(module) is None]
    if missing:
        raise UserError(f"d2e serve needs {' and '.join(missing)}", remedy="pip install 'd2e-sft[serve]'")
    load_prompt_set(options.prompt_set)  # a wrong name is told before the model is loaded
    if options.api_key is None and not is_local(options.host):
        print(f"d2e: warning: {options.host} is reachable by others and no --api-key is set", file=sys.stderr)
    arguments = engine_arguments(model, options)
    asyncio.run(_run(arguments, options))


def is_local(host: str) -> bool:
    """Whether an address is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def engine_arguments(model: str, options: ServeOptions) -> Namespace:
    """vLLM's parsed options.

    Raises:
        UserError: an option that pairs cannot be served with.
    """
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="d2e serve"))
    given = list(options.engine_arguments)
    named = any(argument.split("=")[0] == "--served-model-name" for argument in given)
    arguments: Namespace = parser.parse_args(
        [
            f"--model={model_folder(model)}",
            f"--host={options.host}",
            f"--port={options.port}",
            # Pairs that parted go first, while the cache still holds their prompts.
            "--scheduling-policy=priority",
            *([] if named else ["--served-model-name", model]),
            *(f"--logits-processors={plugin}" for plugin in unregistered_plugin()),
            *given,
        ]
    )
    arguments.api_key = None  # ours is checked before a body is read
    if (arguments.api_server_count or 1) > 1 or arguments.headless:
        raise UserError(
            "--api-server-count and --headless: a pair's two requests need one front",
            remedy="use one API server; --data-parallel-size and --tensor-parallel-size work",
        )
    validate_parsed_serve_args(arguments)
    return arguments


async def _run(arguments: Namespace, options: ServeOptions) -> None:
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.launcher import serve_http, setup_server

    address, sock = setup_server(arguments, reuse_port=False)
    try:
        async with build_async_engine_client(arguments) as engine:
            app = await build_app(engine, arguments, options)
            print(f"d2e: serving {arguments.served_model_name[0]} at {address}/v1", file=sys.stderr, flush=True)
            stopped = await serve_http(
                app,
                sock=sock,
                host=arguments.host,
                port=arguments.port,
                log_level=arguments.uvicorn_log_level,
                access_log=not arguments.disable_uvicorn_access_log,
            )
        await stopped
    finally:
        sock.close()


async def build_app(engine: Any, arguments: Namespace, options: ServeOptions) -> Any:
    """vLLM's app around an engine, with pairs, the chat route and the limits."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app as build_vllm_app
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    from d2e_sft.vllm.chat import add_chat_route
    from d2e_sft.vllm.online import PairingEngine

    client = PairingEngine(engine)
    await client.probe()
    tasks = await engine.get_supported_tasks()
    app = build_vllm_app(arguments, tasks, engine.model_config)
    await init_app_state(client, app.state, arguments, tasks)
    wording = load_prompt_set(options.prompt_set)
    add_chat_route(app, prompt_set=wording, format=options.format, decoding=options.decoding)
    # vLLM's app has built its middleware, so ours go around it. The outermost sees a request first: who may not ask
    # does not get a body read.
    around: Any = QueueLimit(BodyLimit(app.middleware_stack or app.build_middleware_stack(), options.max_body_bytes))
    app.middleware_stack = AuthenticationMiddleware(around, [options.api_key]) if options.api_key else around
    return app


class BodyLimit:
    """ASGI middleware that answers 413 to a larger body, whether its length was announced or it came in chunks.

    Args:
        app: what requests go on to.
        max_bytes: the largest body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if announced.isdigit() and int(announced) > self.max_bytes:
            await self._refuse(send)
            return
        # Read to the end before the request goes on: once an answer has begun, there is no status left to refuse with.
        messages: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            messages.append(message)
            size += len(message.get("body", b""))
            more = message["type"] == "http.request" and bool(message.get("more_body", False))
            if size > self.max_bytes:
                await self._refuse(send)
                return
        remaining = iter(messages)

        async def replay() -> Message:
            message = next(remaining, None)
            return await receive() if message is None else message

        await self.app(scope, replay, send)

    async def _refuse(self, send: Send) -> None:
        error = {
            "message": f"request body larger than {self.max_bytes} bytes; shorten the context, or start the server "
            "with a larger --max-body-bytes",
            "type": "RequestEntityTooLarge",
            "param": None,
            "code": 413,
        }
        # The rest of the body is not read, so the connection can serve no other request.
        await _answer(send, 413, error, (b"connection", b"close"))


class QueueLimit:
    """ASGI middleware that answers 429 with `Retry-After` where vLLM answers 503 because its queue is full.

    A client of OpenAI's interface takes 429 for "later" and 503 for "broken"; asked for its health, vLLM keeps it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        refused, body = False, b""

        async def with_hint(message: Message) -> None:
            nonlocal refused, body
            if message["type"] == "http.response.start" and message["status"] == 503:
                refused = True
            elif not refused:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await _answer(send, 429, _too_many(body), (b"retry-after", b"1"))

        await self.app(scope, receive, with_hint)


def _too_many(body: bytes) -> dict[str, Any]:
    """vLLM's error under its new status."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": body.decode("utf-8", "replace") or "the queue is full", "param": None}
    return {**error, "type": "TooManyRequests", "code": 429}


async def _answer(send: Send, status: int, error: dict[str, Any], *more: tuple[bytes, bytes]) -> None:
    """An error in OpenAI's form."""
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

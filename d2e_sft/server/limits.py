"""ASGI middleware of `d2e serve` and `d2e demo`: web pages, the key, bodies, and the status of a full queue."""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from d2e_sft.server.openai import error_body
from d2e_sft.server.start import ServeOptions, is_local
from d2e_sft.util.errors import shortened
from d2e_sft.util.files import load_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_USUAL_PORTS = {"http": 80, "https": 443}


class PageCheck:
    """Answers 403 to requests that a web page from elsewhere made its visitor's browser send.

    A browser names the page in `Origin`. A page whose own name leads to this machine (DNS rebinding) has that name as
    `Host`. Programs send no `Origin`, and pages of this server send one that equals their `Host`.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self.app = app
        self._origins = {*options.allow_origins}
        self._hosts = {options.host.lower(), *(_name_of(host.rpartition("//")[2]) for host in options.allow_hosts)}
        self._any_address = options.host in ("", "0.0.0.0", "::")
        self._hosts |= {socket.gethostname().lower()} if self._any_address else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None if scope["type"] == "lifespan" else self._problem(scope["headers"])
        if problem is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # the browser sees 403
        else:
            await _answer(send, 403, error_body(problem, 403))

    def _problem(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        sent = [(name, value.decode("latin-1").lower()) for name, value in headers]
        hosts = [value for name, value in sent if name == b"host"]
        # A browser leaves the usual port out of Origin; a proxy may add it to Host.
        ours = {f"{kind}://{host.removesuffix(f':{usual}')}" for host in hosts for kind, usual in _USUAL_PORTS.items()}
        for name, value in sent:
            if name == b"host" and not self._serves(_name_of(value)):
                return f"Host {shortened(value)}: not an address of this server; start it with --allow-host NAME"
            if name == b"origin" and not {value, "*"} & self._origins and value not in ours:
                return f"Origin {shortened(value)}: another web page; start the server with --allow-origin ORIGIN"
        return None

    def _serves(self, name: str) -> bool:
        with suppress(ValueError):
            known = bool({name, "*"} & self._hosts) or is_local(name)
            return known or (self._any_address and bool(ipaddress.ip_address(name)))
        return False


def _name_of(host: str) -> str:
    """Return the name or address in a `Host`; its port may be that of a tunnel or a container."""
    try:
        return urlsplit(f"//{host}").hostname or host.lower()
    except ValueError:
        return host


class KeyCheck:
    """Answers 401 below `/v1` to requests that do not bear the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self.app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            sent_key = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(sent_key, self._expected):
                message = "the key is missing or wrong; expected the server's --api-key as a bearer token"
                await _answer(send, 401, error_body(message, 401))
                return
        await self.app(scope, receive, send)


class BodyCheck:
    """Answers 413 to bodies of more than `max_bytes`, announced or in chunks; 415 and 400 to bodies that are not JSON.

    The type must name JSON: a browser sends other types for any page, without asking the server first.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        too_large = announced.isdigit() and int(announced) > self.max_bytes
        # Read to the end first: once an answer has begun, its status cannot change.
        messages: list[Message] = []
        body, more = bytearray(), True
        while more and not too_large:
            part = await receive()
            if part["type"] == "http.disconnect":  # in the middle of its body: nobody waits for an answer
                return
            messages.append(part)
            body += part.get("body", b"")
            more, too_large = bool(part.get("more_body", False)), len(body) > self.max_bytes
        if too_large:  # the rest of the body is not read, so the connection cannot be reused
            message = f"request body larger than {self.max_bytes} bytes; shorten the context, or start the server with"
            error = error_body(f"{message} a larger --max-body-bytes", 413)
            return await _answer(send, 413, error, (b"connection", b"close"))
        kind = headers.get(b"content-type", b"").decode("latin-1")
        if body and kind.partition(";")[0].strip().lower() != "application/json":
            message = f"Content-Type {shortened(kind)}: not supported; expected application/json"
            return await _answer(send, 415, error_body(message, 415))
        try:
            load_json(body or b"null")
        except (ValueError, RecursionError) as problem:
            return await _answer(send, 400, error_body(f"the body is not valid JSON ({problem})", 400))
        remaining = iter(messages)

        async def replay() -> Message:
            message = next(remaining, None)
            return await receive() if message is None else message

        await self.app(scope, replay, send)


class QueueLimit:
    """Answers 429 with `Retry-After` instead of vLLM's 503 for a full queue.

    Clients of OpenAI's interface take 429 for "later" and 503 for "broken". Health checks keep vLLM's status.
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
    try:
        error = json.loads(body)["error"]
        return error_body(error["message"], 429, error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return error_body(body.decode("utf-8", "replace") or "the queue is full", 429)


async def _answer(send: Send, status: int, error: dict[str, Any], *more: tuple[bytes, bytes]) -> None:
    body = json.dumps(error).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

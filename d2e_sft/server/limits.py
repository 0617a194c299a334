"""ASGI middleware of `d2e serve`: the key, limits on bodies, and the status of a full queue."""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING, Any

from d2e_sft.server.openai import error_body

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


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


class BodyLimit:
    """Answers 413 to bodies of more than `max_bytes`, whether their length was announced or they come in chunks."""

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
        # Read to the end first: once an answer has begun, its status cannot change.
        messages: list[Message] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # in the middle of its body: nobody waits for an answer
                return
            messages.append(message)
            size += len(message.get("body", b""))
            more = bool(message.get("more_body", False))
            if size > self.max_bytes:
                await self._refuse(send)
                return
        remaining = iter(messages)

        async def replay() -> Message:
            message = next(remaining, None)
            return await receive() if message is None else message

        await self.app(scope, replay, send)

    async def _refuse(self, send: Send) -> None:
        message = (
            f"request body larger than {self.max_bytes} bytes; shorten the context, or start the server with a larger "
            "--max-body-bytes"
        )
        # The rest of the body is not read, so the connection cannot be reused.
        await _answer(send, 413, error_body(message, 413), (b"connection", b"close"))


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

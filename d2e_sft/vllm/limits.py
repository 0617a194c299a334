"""What a server takes: request bodies up to a size, and a hint when to come back when it is full."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_FULL = 503
_RETRY_AFTER_SECONDS = b"1"


class BodyLimit:
    """ASGI middleware that answers 413 to a larger body, whether its length was announced or it came in chunks.

    Args:
        app: what requests go on to.
        max_bytes: the largest body.
    """

    def __init__(self, app: App, max_bytes: int) -> None:
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
        body = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        # The rest of the body is not read; the connection cannot be used for another request.
        headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class RetryAfter:
    """ASGI middleware that adds `Retry-After` where vLLM turns a request away because its queue is full (503)."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_hint(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _FULL:
                headers = list(message.get("headers", []))
                if not any(name.lower() == b"retry-after" for name, _ in headers):
                    message = {**message, "headers": [*headers, (b"retry-after", _RETRY_AFTER_SECONDS)]}
            await send(message)

        await self.app(scope, receive, with_hint)

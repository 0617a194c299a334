"""Bodies beyond the limit are refused, whether their length was announced or they came in chunks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from d2e_sft.vllm.serve import BodyLimit, RetryAfter


def _ask(app: Any, chunks: list[bytes], announce: int | None = None) -> tuple[int, dict[bytes, bytes], bytes]:
    messages = [
        {"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1} for i, chunk in enumerate(chunks)
    ]
    messages.append({"type": "http.disconnect"})
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if announce is None else [(b"content-length", str(announce).encode())]
    asyncio.run(app({"type": "http", "headers": headers}, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    assert (await receive())["type"] == "http.disconnect", "what comes after the body is passed on"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("chunks", [[b"x" * 10], [b"x" * 4, b"", b"y" * 6]])
def test_a_body_within_the_limit_goes_on_as_it_came(chunks: list[bytes]) -> None:
    assert _ask(BodyLimit(_echo, 10), chunks) == (200, {}, b"".join(chunks))


@pytest.mark.parametrize(
    ("chunks", "announce"), [([b"x"], 11), ([b"x" * 11], None), ([b"x" * 6] * 1000, None), ([b"x" * 11], 5)]
)
def test_a_larger_body_is_answered_with_413_in_openais_form(chunks: list[bytes], announce: int | None) -> None:
    status, headers, body = _ask(BodyLimit(_echo, 10), chunks, announce)
    assert status == 413
    assert headers[b"connection"] == b"close"
    assert json.loads(body)["error"]["code"] == 413


@pytest.mark.parametrize(("status", "hint"), [(503, b"1"), (200, None), (429, None)])
def test_a_full_engine_says_when_to_come_back(status: int, hint: bytes | None) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert _ask(RetryAfter(answer), [b""])[1].get(b"retry-after") == hint

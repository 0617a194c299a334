"""Bodies beyond the limit are refused, whether their length was announced or they came in chunks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from d2e_sft.server.limits import BodyLimit, QueueLimit


def _ask(
    app: Any, chunks: list[bytes], announce: int | None = None, method: str = "POST"
) -> tuple[int, dict[bytes, bytes], bytes]:
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
    asyncio.run(app({"type": "http", "method": method, "headers": headers}, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


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


def test_a_client_that_leaves_in_the_middle_of_its_body_gets_no_answer() -> None:
    messages = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def run(*_: Any) -> None:
        sent.append("the app was called, or something was sent")

    asyncio.run(BodyLimit(run, 10)({"type": "http", "headers": []}, receive, run))
    assert not sent


def _answering(status: int, body: bytes) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    return answer


@pytest.mark.parametrize(
    ("body", "said"), [(b'{"error": {"message": "queue of 12 is full", "code": 503}}', "queue of 12 is full"),
                       (b"overloaded", "overloaded"), (b"", "the queue is full")],
)  # fmt: skip
def test_a_full_queue_is_429_and_says_when_to_come_back(body: bytes, said: str) -> None:
    status, headers, answered = _ask(QueueLimit(_answering(503, body)), [b""])
    assert (status, headers[b"retry-after"], headers[b"content-length"]) == (429, b"1", str(len(answered)).encode())
    error = json.loads(answered)["error"]
    assert (error["message"], error["code"]) == (said, 429)


@pytest.mark.parametrize(("status", "method"), [(200, "POST"), (400, "POST"), (503, "GET")])
def test_other_answers_and_the_state_of_health_go_on_as_they_are(status: int, method: str) -> None:
    app = QueueLimit(_answering(status, b"as it is"))
    assert _ask(app, [b""], method=method) == (status, {b"x": b"y"}, b"as it is")

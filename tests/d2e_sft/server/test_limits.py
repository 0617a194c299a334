"""What does not reach the app: requests of other web pages, and bodies that are too large or not JSON."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from d2e_sft.server.limits import BodyCheck, PageCheck, QueueLimit
from d2e_sft.server.start import ServeOptions


def _ask(
    app: Any, chunks: list[bytes], announce: int | None = None, method: str = "POST", **sent_headers: str
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

    named = {"content-type": "application/json", **sent_headers}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    headers += [] if announce is None else [(b"content-length", str(announce).encode())]
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


@pytest.mark.parametrize("chunks", [[b'"' + b"x" * 8 + b'"'], [b'{"a"', b"", b": [1]}"]])
def test_a_body_within_the_limit_goes_on_as_it_came(chunks: list[bytes]) -> None:
    assert _ask(BodyCheck(_echo, 10), chunks) == (200, {}, b"".join(chunks))


@pytest.mark.parametrize(
    ("chunks", "announce"), [([b"x"], 11), ([b"x" * 11], None), ([b"x" * 6] * 1000, None), ([b"x" * 11], 5)]
)
def test_a_larger_body_is_answered_with_413_in_openais_form(chunks: list[bytes], announce: int | None) -> None:
    status, headers, body = _ask(BodyCheck(_echo, 10), chunks, announce)
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

    asyncio.run(BodyCheck(run, 10)({"type": "http", "headers": []}, receive, run))
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


_ROWS = (  # a body, its type, and the status and message of the answer
    (rb'{"a": ["\ud800"]}', "application/json", 400, "lone surrogate"),
    (rb'{"\udc00": 1}', "application/json", 400, "lone surrogate"),
    (b'{"a": "\xed\xa0\x80"}', "application/json", 400, "utf-8"),
    (b'{"a": {"b": 1, "b": 1}}', "application/json", 400, "'b' is given twice"),
    (b'{"a": -Infinity}', "application/json", 400, "-Infinity is not a JSON value"),
    (b"[" * 100_000, "application/json", 400, "recursion"),
    (b"{", "application/json", 400, "not valid JSON"),
    (b"{}", "text/plain", 415, "'text/plain'"),
    (b"{}", "", 415, "expected application/json"),
    (b"{}", "application/json-but-not", 415, "expected application/json"),
    (rb'{"a": "\ud83d\ude00"}', "Application/JSON; charset=utf-8", 200, "ud83d"),
    (b"", "text/plain", 200, ""),
)  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "status", "said"), _ROWS)
def test_a_body_is_json_that_every_reader_understands_alike(body: bytes, kind: str, status: int, said: str) -> None:
    found, _, answer = _ask(BodyCheck(_echo, 1_000_000), [body], content_type=kind)
    assert (found, said in answer.decode()) == (status, True), answer


_LOCAL, _OPEN = ServeOptions(), ServeOptions(host="0.0.0.0")
_NAMED = ServeOptions(host="192.168.1.5", allow_hosts=("d2e.example", "https://B.example:443"))
_PAGE = ServeOptions(allow_origins=("https://app.example",))
_ANY = ServeOptions(allow_hosts=("*",), allow_origins=("*",))
_PASSES: list[tuple[ServeOptions, dict[str, str]]] = [
    (_LOCAL, {}),  # HTTP/1.0, as of a balancer
    *((_LOCAL, {"host": host}) for host in ("127.0.0.1:8000", "LOCALHOST:9", "[::1]:8000", "127.0.0.2")),
    *((_OPEN, {"host": host}) for host in ("10.1.2.3:8000", "[fd00::1]", "localhost", socket.gethostname())),
    *((_NAMED, {"host": host}) for host in ("192.168.1.5", "d2e.example:8000", "b.example")),
    (_LOCAL, {"host": "localhost:8000", "origin": "http://localhost:8000"}),
    (_NAMED, {"host": "d2e.example", "origin": "https://d2e.example"}),
    (_NAMED, {"host": "d2e.example:443", "origin": "https://d2e.example"}),
    (_NAMED, {"host": "d2e.example:80", "origin": "http://d2e.example"}),
    (_PAGE, {"host": "localhost:8000", "origin": "https://app.example"}),
    (_ANY, {"host": "anything", "origin": "null"}),
]
_REFUSED: list[tuple[ServeOptions, dict[str, str]]] = [
    *((_LOCAL, {"host": host}) for host in ("evil.example", "127.0.0.1.evil.example", "10.1.2.3", "", "[::1", "a@b")),
    *((_OPEN, {"host": host}) for host in ("evil.example", "1.2.3.4.evil.example")),
    (_NAMED, {"host": "192.168.1.6"}),
    (_NAMED, {"host": "d2e.example:443", "origin": "http://d2e.example"}),
    *(
        (_LOCAL, {"host": "localhost:8000", "origin": page})
        for page in ("null", "http://localhost:3000", "", "file://")
    ),
    (_LOCAL, {"host": "localhost", "origin": "http://evil.example"}),
    (_PAGE, {"host": "localhost", "origin": "https://app.example.evil.example"}),
    (_PAGE, {"host": "localhost", "origin": "http://app.example"}),
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_only_pages_and_names_of_this_server_or_allowed_ones_may_ask(kind: str) -> None:
    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def passed(*_: Any) -> None:
        sent.append({"type": "passed"})

    for cases, expected in (
        (_PASSES, "passed"),
        (_REFUSED, f"{kind}.{'response.start' * (kind == 'http') or 'close'}"),
    ):
        for options, given in cases:
            sent: list[dict[str, Any]] = []
            headers = [(name.encode(), value.encode()) for name, value in given.items()]
            asyncio.run(PageCheck(passed, options)({"type": kind, "headers": headers}, passed, send))
            assert (sent[0]["type"], sent[0].get("status", 403)) == (expected, 403), (options, given)

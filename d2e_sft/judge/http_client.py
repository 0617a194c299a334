"""An HTTP client for the `openai` package whose answers are bounded in time and size, and the reading of answers.

The timeout of an HTTP client is that between two pieces of an answer: a head or body of one byte a second never
exceeds it, and an endless body fills the memory. Redirects are not followed, since a key and texts are meant for one
address only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from d2e_sft.judge.messages import Listener, Reply
from d2e_sft.util.errors import UserError

LARGEST = 16 << 20  # bytes of an answer; a reply of 100,000 tokens has less than one of them
# A request may take this many timeouts in all, because some servers send blanks while a model thinks.
PATIENCE = 4
T = TypeVar("T")


class UnboundedAnswerError(httpx.RequestError):
    """An answer that is too large, too slow, or compressed; the client sends the request again."""


class StopError(BaseException):
    """Ends a request before it is sent; not an Exception, which the client would retry."""

    def __init__(self, error: UserError | None = None) -> None:
        super().__init__()
        self.error = error


@dataclass
class Requests:
    """Reports each request to the listener, retries included, and ends threads that should not send any more.

    Attributes:
        place: of a thread; its `index` is that of the thread's prompt.
    """

    listener: Listener
    stopped: threading.Event = field(default_factory=threading.Event)
    place: threading.local = field(default_factory=threading.local)

    def begin(self, *, retry: bool) -> None:
        if self.stopped.is_set():
            raise StopError
        try:
            self.listener.sending(self.place.index, retry=retry)
        except UserError as error:
            raise StopError(error) from None


def is_without_credit(status: int, body: bytes) -> bool:
    """Return whether a refusal is for an account without credit; OpenAI sends it with the status of throttling."""
    return status == 402 or (status == 429 and b"insufficient_quota" in body)


def bounded_client(openai: ModuleType, timeout: float, requests: Requests) -> Any:
    """Return the HTTP client.

    Args:
        openai: the package.
        timeout: seconds that a server may be silent; a whole request may take `PATIENCE` times as long.
        requests: told of each request, in the thread that sends.
    """

    class BoundedClient(openai.DefaultHttpxClient):  # type: ignore[name-defined]
        def send(self, request: Any, *, stream: bool = False, follow_redirects: object = None, **given: Any) -> Any:
            requests.begin(retry=request.headers.get("x-stainless-retry-count", "0") != "0")
            plain_send, until = super().send, time.monotonic() + PATIENCE * timeout

            def fetch() -> tuple[Any, bytes]:
                response = plain_send(request, stream=True, follow_redirects=False, **given)
                try:
                    return response, _read(response, until)
                finally:
                    response.close()

            response, content = _within(PATIENCE * timeout, fetch)
            if response.status_code >= 400:
                requests.listener.refused(requests.place.index)
            # As bytes, since a server may send any header; without those about how the body was transferred.
            left_out = (b"transfer-encoding", b"content-length")
            headers = [pair for pair in response.headers.raw if pair[0].lower() not in left_out]
            answer = type(response)(response.status_code, headers=headers, content=content, request=request)
            if is_without_credit(response.status_code, content):
                answer.headers["x-should-retry"] = "false"  # read by the client
            return answer

    return BoundedClient(headers={"Accept-Encoding": "identity"})


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of work in a thread of its own; UnboundedAnswerError if it takes longer.

    Nothing ends the reading of a head or the look-up of a name from outside. A daemon thread that is late is left
    behind, and its connection is closed with the client.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([future], seconds).done:
        raise UnboundedAnswerError(f"sends its answer too slowly, not all of it in {seconds:g} s")
    return future.result()


def _read(response: Any, until: float) -> bytes:
    # A small compressed body can unpack to very much, and none was asked for.
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnboundedAnswerError(f"sends a compressed answer ({response.headers['Content-Encoding'][:40]})")
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if len(content) > LARGEST:
            raise UnboundedAnswerError(f"sends more than {LARGEST >> 20} MiB in one answer")
        if time.monotonic() > until:  # nobody waits for it any more
            raise UnboundedAnswerError("sends its answer too slowly")
    return bytes(content)


class _Message(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def read_completion(body: bytes) -> Reply | None:
    """Return the reply in the bytes of a chat completion; None if they are anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except ValidationError:
        return None
    choice = completion.choices[0]
    return Reply(
        text=choice.message.content or "",
        prompt_tokens=_count(completion.usage, "prompt_tokens"),
        completion_tokens=_count(completion.usage, "completion_tokens"),
        cut_off=choice.finish_reason == "length",
    )


def _count(usage: Any, name: str) -> int | None:
    """Return a number of tokens; None, so that it is guessed, for anything odd and for 0, which some proxies send."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value > 0 else None


def server_message(body: bytes) -> str:
    """Return what a refusal says, on one line: OpenAI's form, the forms of other servers, or the whole body."""
    text = body.decode("utf-8", errors="replace")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return " ".join(text.split())
    while isinstance(content, dict):
        content = next((content[key] for key in ("error", "message", "detail") if content.get(key)), str(content))
    return " ".join(str(content).split())

"""An HTTP client for the `openai` package whose answers are bounded in time and size, with a hook for each attempt.

The timeout of an HTTP client is that between two pieces of an answer: one byte a second never exceeds it, and an
endless body fills the memory. Redirects are not followed, since a key and texts are meant for one address only.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import httpx

from d2e_sft.judge.messages import Listener
from d2e_sft.util.errors import UserError

LARGEST = 16 << 20  # bytes of an answer; a reply of 100,000 tokens has less than one of them
# An answer may take this many timeouts in all, because some servers send blanks while a model thinks.
PATIENCE = 4


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
        if retry:
            self.listener.retried()
        try:
            self.listener.sending(self.place.index)
        except UserError as error:
            raise StopError(error) from None

    def refused(self) -> None:
        self.listener.refused(self.place.index)


def bounded_client(openai: ModuleType, timeout: float, requests: Requests) -> Any:
    """Return the HTTP client.

    Args:
        openai: the package.
        timeout: seconds that a server may be silent.
        requests: told of each request, in the thread that sends.
    """

    class BoundedClient(openai.DefaultHttpxClient):  # type: ignore[name-defined]
        def send(self, request: Any, *, stream: bool = False, follow_redirects: object = None, **given: Any) -> Any:
            requests.begin(retry=request.headers.get("x-stainless-retry-count", "0") != "0")
            response = super().send(request, stream=True, follow_redirects=False, **given)
            try:
                content = _read(response, time.monotonic() + PATIENCE * timeout)
            finally:
                response.close()
            if response.status_code >= 400:
                requests.refused()
            # As bytes, since a server may send any header; without those about how the body was transferred.
            headers = [
                pair
                for pair in response.headers.raw
                if pair[0].lower() not in (b"transfer-encoding", b"content-length")
            ]
            return type(response)(response.status_code, headers=headers, content=content, request=request)

    return BoundedClient(headers={"Accept-Encoding": "identity"})


def _read(response: Any, until: float) -> bytes:
    # A small compressed body can unpack to very much, and none was asked for.
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnboundedAnswerError(f"sends a compressed answer ({response.headers['Content-Encoding'][:40]})")
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if len(content) > LARGEST:
            raise UnboundedAnswerError(f"sends more than {LARGEST >> 20} MiB in one answer")
        if time.monotonic() > until:
            raise UnboundedAnswerError(f"sends its answer too slowly, {len(content):,} bytes so far")
    return bytes(content)

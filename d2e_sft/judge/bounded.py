"""An HTTP client for the `openai` package that no server can keep busy or fill for ever.

The timeout of an HTTP client is that between two pieces of an answer: one byte a second never exceeds it, and a body
without end fills the memory. Here an answer has a longest time and a largest size. And it follows no redirect: a
request carries a key and people's texts, which are meant for the address that the user gave.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

LARGEST = 16 << 20  # bytes of an answer; a reply of 100,000 tokens has less than one of them
# An answer may take so many times what it may be silent: some servers send blanks while a model thinks.
PATIENCE = 4


class UnboundedAnswerError(Exception):
    """An answer that is too long, takes too long, or is packed."""


def bounded_client(openai: ModuleType, timeout: float) -> Any:
    """The HTTP client.

    Args:
        openai: the package.
        timeout: seconds that a server may be silent.
    """

    class BoundedClient(openai.DefaultHttpxClient):  # type: ignore[name-defined]
        def send(self, request: Any, *, stream: bool = False, follow_redirects: object = None, **given: Any) -> Any:
            response = super().send(request, stream=True, follow_redirects=False, **given)
            try:
                content = _read(response, time.monotonic() + PATIENCE * timeout)
            finally:
                response.close()
            return type(response)(
                response.status_code, headers=_own_headers(response.headers), content=content, request=request
            )

    return BoundedClient(headers={"Accept-Encoding": "identity"})


def _read(response: Any, until: float) -> bytes:
    # Little may unpack to very much, and it was not asked for.
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnboundedAnswerError(f"sends a packed answer ({response.headers['Content-Encoding'][:40]})")
    content = bytearray()
    for piece in response.iter_raw():
        content += piece
        if len(content) > LARGEST:
            raise UnboundedAnswerError(f"sends more than {LARGEST >> 20} MiB in one answer")
        if time.monotonic() > until:
            raise UnboundedAnswerError(f"sends its answer so slowly that it has {len(content):,} bytes by now")
    return bytes(content)


def _own_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """All but those about how the body came; as bytes, since a server may send any."""
    return [pair for pair in headers.raw if pair[0].lower() not in (b"transfer-encoding", b"content-length")]

"""Whether addresses answer: all are asked at once, for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import httpx

_OF_GATEWAYS = (407, 502, 503, 504)  # statuses of a gateway in front of a service


def why_silent(addresses: Iterable[str], seconds: float) -> dict[str, str]:
    """Return why each address does not answer within `seconds`; "" if it does, with whatever page."""
    answers: dict[str, str] = {}
    # Daemons: a name that is never resolved must not block the end of the command.
    threads = {
        address: threading.Thread(target=_head, args=(address, answers, seconds), daemon=True)
        for address in dict.fromkeys(addresses)
    }
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(deadline - time.monotonic(), 0))
    return {address: answers.get(address, f"no answer in {seconds:g} s") for address in threads}


def _head(address: str, answers: dict[str, str], seconds: float) -> None:
    try:
        response = httpx.head(address, timeout=seconds)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        answers[address] = f"{type(error).__name__}: {error}".strip(": ")
    else:
        answers[address] = f"HTTP {response.status_code}" if response.status_code in _OF_GATEWAYS else ""

"""How long to wait before a request is sent again, and how all threads wait together when the server asks for it."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

# Request timeout, too early, too many requests; 409 is what some servers answer while a model is being loaded.
_TRANSIENT = frozenset({408, 409, 425, 429})


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _TRANSIENT or status >= 500


def backoff(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures of one request: `first`, then twice as long each time, up to `longest`.

    Each is shortened at random, by up to half: threads that failed together shall not come back together.
    """
    # The exponent is capped, as 2.0 ** 1024 overflows.
    return min(first * 2.0 ** min(failures - 1, 60), longest) * random.uniform(0.5, 1)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server's answer asks to wait; None where it does not say, or not legibly."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) / unit
            if not math.isnan(seconds):
                return max(seconds, 0.0)
        except ValueError:
            pass
        try:
            return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
        except (ValueError, OverflowError):  # a year that no clock can tell
            pass
    return None


class StoppedError(Exception):
    """The run has ended: whoever was about to send a request shall not."""


class Gate:
    """Where threads wait before they send: until their own time, until the server's, or until the run is stopped."""

    def __init__(self) -> None:
        self._opens_at = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def close_for(self, seconds: float) -> None:
        """Nobody sends for so long."""
        with self._lock:
            self._opens_at = max(self._opens_at, time.monotonic() + seconds)

    def stop(self) -> None:
        """Nobody sends any more."""
        self._stopped.set()

    def wait(self, seconds: float = 0.0) -> None:
        """Return when `seconds` are over and the gate is open.

        Raises:
            StoppedError: at once when the run is stopped.
        """
        until = time.monotonic() + seconds
        # Looped, since the gate may be closed for longer meanwhile.
        while (left := max(until, self._opens_at) - time.monotonic()) > 0:
            if self._stopped.wait(left):
                break
        if self._stopped.is_set():
            raise StoppedError

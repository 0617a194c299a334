"""Threads that work through a list and can be left behind.

Python waits at its end for the threads of a `concurrent.futures` pool, so a stalled server would block Ctrl-C. These
threads are daemons: the caller waits for them for a limited time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POLL = 0.2  # seconds between two checks for threads that take too long


class OverdueError(Exception):
    """A thread has exceeded the time for one item."""


class Workers:
    """Threads that call `work` once with each number from 0 to `items` - 1.

    Args:
        count: number of threads.
        work: its first exception ends the work, and is raised by `wait`.
        items: number of calls.
    """

    def __init__(self, count: int, work: Callable[[int], None], items: int) -> None:
        self._work, self._items = work, items
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._next = 0
        self._started: dict[int, float] = {}
        self._error: BaseException | None = None
        self._stopped = False
        self._left = False
        self._threads = [
            threading.Thread(target=self._run, name=f"judge-{number}", daemon=True)
            for number in range(min(count, items))
        ]

    def wait(self, longest: float) -> None:
        """Start, and return when all is done.

        Args:
            longest: seconds that one item may take.

        Raises:
            OverdueError: an item takes longer.
            BaseException: the exception of `work`.
        """
        for thread in self._threads:
            thread.start()
        with self._lock:
            while self._error is None and (self._started or self._next < self._items):
                self._changed.wait(_POLL)
                if self._started and time.monotonic() - min(self._started.values()) > longest:
                    raise OverdueError
            if self._error is not None:
                raise self._error

    def leave(self, seconds: float) -> None:
        """Start no further item, wait for the open ones for at most `seconds`, then ignore their results."""
        until = time.monotonic() + seconds
        with self._lock:
            self._stopped = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._left = True

    def deliver(self, action: Callable[[], None]) -> None:
        """Run the callback unless the caller has left."""
        with self._lock:
            left = self._left
        if not left:
            action()

    @property
    def stopped(self) -> bool:
        """Whether no further item is started."""
        return self._stopped

    def open_items(self) -> int:
        """Return the number of items that have started and not ended."""
        with self._lock:
            return len(self._started)

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._work(item)
            except BaseException as error:  # raised again by `wait`
                with self._lock:
                    self._error = self._error or error
                    self._stopped = True
            with self._lock:
                del self._started[item]
                self._changed.notify_all()

    def _take(self) -> int | None:
        with self._lock:
            if self._stopped or self._next >= self._items:
                return None
            item, self._next = self._next, self._next + 1
            self._started[item] = time.monotonic()
            return item

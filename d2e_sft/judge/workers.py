"""A few threads that work off a list, and can be left behind.

A pool of `concurrent.futures` is waited for when Python ends, whatever its threads are waiting for themselves; so
against a server that stalls, Ctrl-C would have to be pressed until every wait is broken off. These threads are
daemons: who leaves waits for them as long as it says, and no longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LOOK = 0.2  # seconds between two looks at threads that take too long


class OverdueError(Exception):
    """A thread has worked at one item for longer than an item may take."""


class Workers:
    """Threads that call `work` with each number from 0 on, each number once.

    Args:
        count: of threads.
        work: what is done; what it raises ends the work, and is raised by `wait`.
        items: the numbers are those below it.
    """

    def __init__(self, count: int, work: Callable[[int], None], items: int) -> None:
        self._work, self._items = work, items
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._next = 0
        self._begun: dict[int, float] = {}
        self._error: BaseException | None = None
        self._stopped = False
        self._left = False
        self._threads = [
            threading.Thread(target=self._run, name=f"judge-{number}", daemon=True)
            for number in range(min(count, items))
        ]

    def wait(self, longest: float) -> None:
        """Begin, and return when all is done.

        Args:
            longest: seconds that one item may take.

        Raises:
            OverdueError: one takes longer.
            BaseException: what `work` raised.
        """
        for thread in self._threads:
            thread.start()
        with self._lock:
            while self._error is None and (self._begun or self._next < self._items):
                self._changed.wait(_LOOK)
                if self._begun and time.monotonic() - min(self._begun.values()) > longest:
                    raise OverdueError
            if self._error is not None:
                raise self._error

    def leave(self, seconds: float) -> None:
        """Begin nothing more, wait so long for what has begun, then take nothing more from it."""
        until = time.monotonic() + seconds
        with self._lock:
            self._stopped = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            self._left = True

    def deliver(self, action: Callable[[], None]) -> None:
        """Do what hands a result on, unless nobody waits for it any more."""
        with self._lock:
            left = self._left
        if not left:
            action()

    def under_way(self) -> int:
        """How many items have begun and not ended."""
        with self._lock:
            return len(self._begun)

    def _run(self) -> None:
        while (item := self._take()) is not None:
            try:
                self._work(item)
            except BaseException as error:  # it is the waiting thread's to handle
                with self._lock:
                    self._error = self._error or error
                    self._stopped = True
            with self._lock:
                del self._begun[item]
                self._changed.notify_all()

    def _take(self) -> int | None:
        with self._lock:
            if self._stopped or self._next >= self._items:
                return None
            item, self._next = self._next, self._next + 1
            self._begun[item] = time.monotonic()
            return item

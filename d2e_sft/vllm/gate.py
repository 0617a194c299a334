"""The number of rows in the engine, and when a pair may enter.

vLLM computes at most `max_num_seqs` rows per step. If a pair enters when one place is free, its second row waits in
the queue and the first has no partner. So a pair waits here until two places are free; plain requests enter at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

# Seconds after which a pair enters even if plain requests never leave two places free. It may then part, which only
# costs time.
_PATIENCE = 5.0


class RowGate:
    """Places for rows; pairs enter in the order of their arrival."""

    def __init__(self, rows: int) -> None:
        self._places = rows
        self._inside = 0
        self._queue: deque[tuple[int, asyncio.Event]] = deque()

    @property
    def waiting(self) -> int:
        """Rows of pairs that have not entered yet."""
        return sum(rows for rows, _ in self._queue)

    @contextmanager
    def count(self, rows: int) -> Iterator[None]:
        """Let rows enter at once, even if no place is free."""
        self._inside += rows
        try:
            yield
        finally:
            self._leave(rows)

    @asynccontextmanager
    async def rows(self, rows: int) -> AsyncIterator[None]:
        """Let rows enter once there are places for all of them."""
        await self._enter(rows)
        try:
            yield
        finally:
            self._leave(rows)

    async def _enter(self, rows: int) -> None:
        if self._queue or self._inside + rows > self._places:
            entry = (rows, asyncio.Event())
            self._queue.append(entry)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await entry[1].wait()
            except BaseException:
                if entry[1].is_set():  # cancelled while entering
                    self._leave(rows)
                raise
            finally:
                with suppress(ValueError):
                    self._queue.remove(entry)
            if entry[1].is_set():
                return
        self._inside += rows

    def _leave(self, rows: int) -> None:
        self._inside -= rows
        while self._queue and self._inside + self._queue[0][0] <= self._places:
            entering, event = self._queue.popleft()
            self._inside += entering
            event.set()

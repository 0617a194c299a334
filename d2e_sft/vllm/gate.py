"""How many rows the engine holds, and when a pair may enter.

vLLM computes at most `max_num_seqs` rows a step. A pair that enters when one place is free leaves its second row in
the queue, and the first one is alone. So a pair waits here until two are free; plain requests go straight on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

# Under plain requests that never leave two places free a pair enters after this time all the same; it may then part,
# which costs time and nothing else.
_PATIENCE = 5.0


class RowGate:
    """Places for `rows` rows; pairs enter in the order in which they came."""

    def __init__(self, rows: int) -> None:
        self._places = rows
        self._inside = 0
        self._queue: deque[tuple[int, asyncio.Event]] = deque()

    @property
    def waiting(self) -> int:
        """Rows of the pairs that have not entered yet."""
        return sum(rows for rows, _ in self._queue)

    @contextmanager
    def count(self, rows: int) -> Iterator[None]:
        """Rows that enter at once, whatever is free."""
        self._inside += rows
        try:
            yield
        finally:
            self._leave(rows)

    @asynccontextmanager
    async def rows(self, rows: int) -> AsyncIterator[None]:
        """Rows that enter when there are places for all of them."""
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
                if entry[1].is_set():  # let in and cancelled at the same time: the places are free again
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

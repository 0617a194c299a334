"""The number of rows in the engine, and when a pair may enter.

vLLM computes at most `max_num_seqs` rows per step. If a pair enters when one place is free, its second row waits in
the queue and the first has no partner. So a pair waits here until two places are free; plain requests enter at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

# Seconds after which a pair enters even if plain requests never leave two places free. It may then part, which only
# costs time.
_PATIENCE = 5.0


class RowGate:
    """Places for rows in the engine: `free` ones (negative if plain requests exceed them), and rows `waiting`."""

    def __init__(self, places: int) -> None:
        self.free = places
        self.waiting = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def rows(self, rows: int, *, wait: bool = True) -> AsyncIterator[None]:
        """Take places for the duration of the block; waits until all of them are free, unless `wait` is False."""
        async with self._changed:
            self.waiting += rows
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await self._changed.wait_for(lambda: not wait or self.free >= rows)
            finally:
                self.waiting -= rows
            self.free -= rows

        async def leave() -> None:
            async with self._changed:
                self.free += rows
                self._changed.notify_all()

        try:
            yield
        finally:
            await asyncio.shield(leave())

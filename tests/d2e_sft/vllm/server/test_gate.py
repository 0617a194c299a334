"""A pair enters the engine when both its rows have a place."""

from __future__ import annotations

import asyncio

import pytest

from d2e_sft.vllm import requests
from d2e_sft.vllm.requests import RowGate


async def enter(places: RowGate) -> None:
    async with places.rows(2):
        pass


def test_pairs_never_exceed_the_places_and_enter_in_order() -> None:
    order: list[int] = []

    async def pair(places: RowGate, number: int) -> None:
        async with places.rows(2):
            order.append(number)
            assert places.free >= 0
            await asyncio.sleep(0.001 * (number % 3))

    async def run() -> None:
        places = RowGate(5)
        await asyncio.gather(*(pair(places, number) for number in range(20)))
        assert (places.waiting, places.free) == (0, 5)

    asyncio.run(run())
    assert order == list(range(20))


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_plain_request_enters_at_once_and_a_pair_waits_for_it_or_gives_up(gives_up: bool) -> None:
    async def run() -> None:
        places = RowGate(2)
        async with places.rows(1, wait=False):
            task = asyncio.create_task(enter(places))
            await asyncio.sleep(0.01)
            assert (places.waiting, places.free) == (2, 1)
            if gives_up:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert places.waiting == 0
        if not gives_up:
            await task
        await enter(places)
        assert places.free == 2

    asyncio.run(run())


def test_plain_requests_that_never_leave_do_not_starve_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_PATIENCE", 0.02)

    async def run() -> None:
        places = RowGate(2)
        async with places.rows(2, wait=False), asyncio.timeout(2), places.rows(2):
            assert places.free == -2
        assert places.free == 2

    asyncio.run(run())

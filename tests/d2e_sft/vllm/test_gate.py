"""A pair enters the engine when both its rows have a place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from d2e_sft.vllm import gate
from d2e_sft.vllm.gate import RowGate


def test_no_pair_is_inside_beyond_the_places_and_they_enter_in_order() -> None:
    inside, most, order = 0, 0, []

    async def pair(places: RowGate, number: int) -> None:
        nonlocal inside, most
        async with places.rows(2):
            order.append(number)
            inside += 2
            most = max(most, inside)
            await asyncio.sleep(0.001 * (number % 3))
            inside -= 2

    async def run() -> None:
        places = RowGate(5)
        await asyncio.gather(*(pair(places, number) for number in range(20)))
        assert places.waiting == 0
        assert places._inside == 0

    asyncio.run(run())
    assert most == 4
    assert order == list(range(20))


def test_a_plain_request_enters_at_once_and_holds_its_place() -> None:
    async def run() -> list[Any]:
        places, seen = RowGate(2), []

        async def pair() -> None:
            async with places.rows(2):
                seen.append("pair")

        with places.count(1):
            task = asyncio.create_task(pair())
            await asyncio.sleep(0.01)
            seen.append(places.waiting)
        await task
        return seen

    assert asyncio.run(run()) == [2, "pair"]


def test_a_pair_that_gives_up_waiting_leaves_the_queue() -> None:
    async def run() -> None:
        places = RowGate(2)

        async def pair() -> None:
            async with places.rows(2):
                pass

        with places.count(1):
            task = asyncio.create_task(pair())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert places.waiting == 0
        async with places.rows(2):
            assert places._inside == 2
        assert places._inside == 0

    asyncio.run(run())


def test_plain_requests_that_never_leave_do_not_starve_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_PATIENCE", 0.02)

    async def run() -> None:
        places = RowGate(2)
        with places.count(2):
            async with asyncio.timeout(2), places.rows(2):
                assert places._inside == 4
        assert places._inside == 0

    asyncio.run(run())

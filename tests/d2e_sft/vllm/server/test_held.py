"""An engine that begins a step with the first request that comes, as an idle one does on a machine with other work."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

from vllm import SamplingParams
from vllm.exceptions import GracefulHTTPError

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding import PromptPair
from d2e_sft.vllm.requests import PairRequest
from d2e_sft.vllm.server import online
from d2e_sft.vllm.server.online import PairingEngine, PairStream, RowGate

SENTINEL = 99
REQUEST = PairRequest(
    PromptPair([1, 2, 3], [1], alpha=0.5), DecodingConfig(max_new_tokens=2), stops=(), sentinel=SENTINEL
)


class Eager:
    """The engine: a step at every request unless it is held; once it was, it is full for the next `full` requests."""

    vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(policy="fcfs"))

    def __init__(self, full: int = 0, held: bool = False) -> None:
        self.held, self.full = held, full
        self.holds = self.refused = 0
        self.queue: list[asyncio.Future[Any]] = []

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        if self.holds and self.refused < self.full:
            assert not (self.held and self.refused > 1), "held while a place is waited for"
            self.refused += 1
            raise GracefulHTTPError("no room", http_status=429)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.queue.append(answer)
        if not self.held:
            self.step()
        yield await answer

    def step(self) -> None:
        tokens = [7, 8] if len(self.queue) == 2 else [SENTINEL]
        for answer in self.queue:
            answer.set_result(
                SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)], finished=True, num_cached_tokens=0)
            )
        self.queue = []

    async def is_paused(self) -> bool:
        return self.held

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        assert (mode, clear_cache) == ("keep", False), "the others are kept, and what they have computed"
        self.held, self.holds = True, self.holds + 1

    async def resume_generation(self) -> None:
        self.held = False
        self.step()


def decoded(engine: Eager) -> list[int]:
    pairing = object.__new__(PairingEngine)
    pairing.engine, pairing._gate, pairing._holding = engine, RowGate(8), asyncio.Lock()
    pairing._ranks = itertools.repeat(None)
    stream = PairStream(None, "r", {"prompt_token_ids": [1, 2, 3]}, SamplingParams(detokenize=False))

    async def last() -> Any:
        return [output async for output in pairing._decode(REQUEST, stream, "r", {})][-1]

    with mock.patch.multiple(online, _FIRST_WAIT=0.001, _LONGEST_WAIT=0.001):
        return list(asyncio.run(asyncio.wait_for(last(), 20)).outputs[0].token_ids)


def test_a_pair_whose_second_request_always_comes_too_late_is_submitted_while_the_engine_is_held() -> None:
    engine = Eager()
    assert decoded(engine) == [7, 8]
    assert engine.holds == 1
    assert not engine.held


def test_an_engine_that_is_full_is_not_held_while_a_place_is_waited_for() -> None:
    engine = Eager(full=2)
    assert decoded(engine) == [7, 8]
    assert not engine.held


def test_an_engine_that_somebody_else_holds_stays_held() -> None:
    engine = Eager(held=True)

    async def wait() -> None:
        pairing = object.__new__(PairingEngine)
        pairing.engine, pairing._holding = engine, asyncio.Lock()
        async with pairing._held():
            pass

    asyncio.run(wait())
    assert engine.held
    assert not engine.holds

"""`d2e serve` with more clients than its queue; needs vLLM (`make test-vllm`, or the Python in D2E_VLLM_PYTHON)."""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from d2e_sft.model.storage.folder import BUILTIN
from tests.attack.frame import ROOT, Attempt, attack
from tests.d2e_sft.vllm.served import KEY, SYSTEM, requests_inside, seconds_until_idle, serving

CLIENTS, QUESTIONS, QUEUE = 100, 40, 60
SECONDS = float(os.environ.get("D2E_LOAD_SECONDS", "300"))
# Memory growth of the server and its engine between the first minute and the end.
_MOST_GROWTH = 150 * 2**20
_HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
_PLACES = ("barn", "garage", "kitchen", "cellar", "attic", "shed", "office", "hall", "garden", "study")


def _python() -> Path:
    python = Path(os.environ.get("D2E_VLLM_PYTHON", ROOT / ".venv-vllm" / "bin" / "python"))
    if not python.is_file():
        pytest.skip("vLLM is not installed: make test-vllm")
    return python


@dataclass
class World:
    """A server, requests of mixed lengths, and the answer to each when it is the only one."""

    address: str
    process: psutil.Process
    bodies: list[dict[str, Any]]
    expected: list[str]

    def memory(self) -> int:
        family = [self.process, *self.process.children(recursive=True)]
        return sum(one.memory_info().rss for one in family)


def _body(number: int) -> dict[str, Any]:
    """Make a story of 1 to 30 moves; every fifth is asked plainly."""
    draw = random.Random(number)
    places = [draw.choice(_PLACES) for _ in range(draw.choice((1, 2, 5, 12, 30)))]
    context = " ".join(f"Then Felix moves the key to the {place}." for place in places)
    question = {"role": "user", "content": f"Question {number}: Where is the key now, and how did it get there?"}
    body: dict[str, Any] = {"model": BUILTIN, "messages": [SYSTEM, question], "temperature": 0}
    body["max_tokens"] = draw.choice((1, 4, 12, 32))
    if number % 5:
        body |= {"context": context, "alpha": draw.choice((0.3, 0.5, 0.9))}
    return body


def _post(address: str, content: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{address}/v1/chat/completions", headers=_HEADERS, content=content, timeout=300, **options)


def _text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text[:300]
    return str(response.json()["choices"][0]["message"]["content"])


@contextmanager
def _world() -> Iterator[World]:
    with serving(_python(), QUEUE) as (address, process):
        bodies = [_body(number) for number in range(QUESTIONS)]
        expected = [_text(_post(address, json.dumps(body))) for body in bodies]
        plain = [_text(_post(address, json.dumps({**body, "alpha": 0}))) for body in bodies if "context" in body]
        debiased = [text for text, body in zip(expected, bodies, strict=True) if "context" in body]
        assert sum(one != other for one, other in zip(plain, debiased, strict=True)) >= 5, "else nothing tells them"
        yield World(address, psutil.Process(process.pid), bodies, expected)


def _client(world: World, draw: random.Random, until: float, counts: Counter[str]) -> None:
    """Send requests until the time is up; disconnect from every tenth before or after the first token."""
    while time.monotonic() < until:
        number = draw.randrange(QUESTIONS)
        body = json.dumps(world.bodies[number])
        if draw.random() < 0.1:
            _leave(world, {**world.bodies[number], "stream": True, "max_tokens": 200, "ignore_eos": True}, draw)
            counts["left"] += 1
            continue
        response = _post(world.address, body)
        if response.status_code == 429:
            counts["turned away"] += 1
            assert response.headers["retry-after"]
            assert response.json()["error"]["message"]
            time.sleep(draw.uniform(0.5, 1.5) * float(response.headers["retry-after"]))
            continue
        assert _text(response) == world.expected[number], f"question {number}: another answer than to a single request"
        counts["answered"] += 1


def _leave(world: World, body: dict[str, Any], draw: random.Random) -> None:
    try:
        with httpx.stream(
            "POST", f"{world.address}/v1/chat/completions", headers=_HEADERS, json=body, timeout=draw.uniform(0.2, 20)
        ) as response:
            next(response.iter_raw(), None)
    except httpx.TimeoutException:
        pass


@attack(
    "100 clients, mixed lengths, some leave",
    "server",
    "each answer equals that of a single request; 429 beyond the queue; no request and no memory remains",
    tries=1,
    quick=0,
)
def test_crowd(given: Attempt) -> None:
    with _world() as world:
        counts: Counter[str] = Counter()
        began = time.monotonic()
        until = began + SECONDS
        with ThreadPoolExecutor(CLIENTS) as pool:
            draws = [random.Random(given.random.random()) for _ in range(CLIENTS)]
            clients = [pool.submit(_client, world, draw, until, counts) for draw in draws]
            time.sleep(min(60, SECONDS / 3))
            early = world.memory()
            for one in clients:
                one.result()
        assert counts["turned away"], f"the queue of {QUEUE} was never full: {counts}"
        assert counts["left"]
        assert counts["answered"] >= CLIENTS / 4, counts
        assert seconds_until_idle(world.address, 30) < 30, f"{requests_inside(world.address)} requests are left"
        growth = world.memory() - early
        assert growth < _MOST_GROWTH, f"{growth / 2**20:.0f} MiB more than after the first minute"
        for body, text in zip(world.bodies, world.expected, strict=True):
            assert _text(_post(world.address, json.dumps(body))) == text
        given.things = counts["answered"] + counts["left"] + counts["turned away"]

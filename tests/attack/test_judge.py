"""Kills of a run with a paid judge."""

import hashlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import until_done
from tests.command import d2e
from tests.factories import make_run, prediction
from tests.judge_server import JudgeServer

WRONG, AT_ONCE = 60, 4
_ENVIRONMENT = {"OPENAI_API_KEY": "sk-of-the-attack", "NO_PROXY": "127.0.0.1"}


def _reply(user: str) -> str:
    """Return a different reply for each prompt."""
    digest = hashlib.sha256(user.encode()).hexdigest()
    return f"Because of {digest[:12]}.\nError: {('neglect', 'position', 'other')[int(digest, 16) % 3]}"


@contextmanager
def _server() -> Iterator[JudgeServer]:
    with JudgeServer() as server, mock.patch.dict(os.environ, _ENVIRONMENT):
        server.reply = _reply
        yield server


def _run(folder: Path) -> Path:
    return make_run(folder / "run", [prediction(n, False, context=f"Context {n}.") for n in range(WRONG)])


def _arguments(folder: Path, server: JudgeServer) -> list[str | Path]:
    asked = ["--judge", "openai", "--judge-model", "m", "--judge-url", server.url, "--judge-cache", folder / "replies"]
    return [folder / "run", "--judge-concurrency", str(AT_ONCE), "--samples", "0", *asked]


def _patterns(folder: Path) -> bytes:
    return (folder / "run/eval/mini/error_patterns.json").read_bytes()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The patterns of wrong answers from an uninterrupted judge."""
    folder = tmp_path_factory.mktemp("world")
    _run(folder)
    with _server() as server:
        assert d2e("errors", *_arguments(folder, server)) == 0
        assert len(server.requests) == WRONG
    return _patterns(folder)


@attack(
    "SIGKILL at random moments of a judge's work",
    "judge",
    "the result of an uninterrupted run; only calls in progress are paid twice",
    tries=12,
)
def test_killed(given: Attempt) -> None:
    _run(given.folder)
    lost = 0
    with _server() as server:
        server.delay = 0.02

        def nothing_paid_twice() -> None:
            nonlocal lost
            missing = len(server.requests) - len([*(given.folder / "replies").rglob("*.json")])
            assert missing - lost <= AT_ONCE, f"{missing - lost} replies lost by one kill"
            lost = missing

        kills = until_done(
            given, _arguments(given.folder, server), signal.SIGKILL, "errors", 2.5, nothing_paid_twice, _ENVIRONMENT
        )
        assert len(server.requests) == WRONG + lost
        assert max(Counter(server.users).values()) <= 1 + kills
    assert _patterns(given.folder) == given.world
    given.things = kills

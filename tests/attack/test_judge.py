"""Kills of a run with a paid judge, damage to its cached replies, and servers that mean harm."""

import gzip
import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from tests.attack.frame import Attempt, attack, flip_a_bit
from tests.attack.interrupted import until_done
from tests.command import d2e
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.factories import make_run, prediction
from tests.judge_server import HARM, JudgeServer, completion, harm
from tests.servers import QuietHandler

WRONG, AT_ONCE = 60, 4
_ENVIRONMENT = {"OPENAI_API_KEY": "sk-of-the-attack", "NO_PROXY": "127.0.0.1"}


def _reply(user: str) -> str:
    """Return a different reply for each prompt."""
    digest = hashlib.sha256(user.encode()).hexdigest()
    return f"Because of {digest[:12]}.\nError: {('neglect', 'position', 'other')[int(digest, 16) % 3]}"


@dataclass
class World:
    """A run with wrong answers, and its patterns from an uninterrupted judge."""

    folder: Path
    whole: bytes


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


def _kept(folder: Path) -> list[Path]:
    return sorted((folder / "replies").rglob("*.json"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    _run(folder)
    with _server() as server:
        assert d2e("errors", *_arguments(folder, server)) == 0
        assert len(server.requests) == WRONG
    return World(folder, _patterns(folder))


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
            missing = len(server.requests) - len(_kept(given.folder))
            assert missing - lost <= AT_ONCE, f"{missing - lost} replies lost by one kill"
            lost = missing

        kills = until_done(
            given, _arguments(given.folder, server), signal.SIGKILL, "errors", 2.5, nothing_paid_twice, _ENVIRONMENT
        )
        assert len(server.requests) == WRONG + lost
        assert max(Counter(server.users).values()) <= 1 + kills
    assert _patterns(given.folder) == given.world.whole
    given.things = kills


@attack("flip a bit of ten kept replies", "judge", "asked again; the result of an uninterrupted run")
def test_flip_a_bit(given: Attempt) -> None:
    _run(given.folder)
    with _server() as server:
        assert d2e("errors", *_arguments(given.folder, server)) == 0
        asked = len(server.requests)
        for file in given.random.sample(_kept(given.folder), 10):
            file.write_bytes(flip_a_bit(file.read_bytes(), given.random))
        assert d2e("errors", *_arguments(given.folder, server)) == 0
        assert asked + 5 <= len(server.requests) <= asked + 10
    assert _patterns(given.folder) == given.world.whole, "a damaged reply was used"


_SECONDS, _PROMPTS = 0.2, 8
_BODIES = (
    b"", b"[" * 100_000, b"{}", b"null", b'{"choices": []}', b'{"choices": [{"message": {"content": 7}}]}',
    b"\xff\xfe", b'{"choices": [{"message": {"content": "\\ud800"}}]}', b"<html>", completion(None),
    completion("no echo"), gzip.compress(b" " * 30_000_000),
)  # fmt: skip
_STATUSES = (200, 200, 200, 204, 302, 400, 401, 404, 429, 500, 503)


@attack(
    "servers that drip, flood, stall, break off and lie",
    "judge",
    "correct replies or one message; no request lasts longer than four timeouts",
    tries=60,
    quick=2,
)
def test_harmful_servers(given: Attempt) -> None:
    """Ask a server that is honest to some requests only, or to none."""
    honest = given.random.choice((0.0, 0.5, 0.9))

    def act(handler: QuietHandler) -> None:
        if given.random.random() < honest:
            handler.reply(200, completion(f"echo: {server.users[-1]}"))
        elif given.random.random() < 0.7:
            harm(handler, given.random.choice(list(HARM)))
        else:
            body, packed = given.random.choice(_BODIES), given.random.random() < 0.2
            handler.reply(given.random.choice(_STATUSES), body, {"Content-Encoding": "gzip"} if packed else {})

    said, answers = "", list[str | None]()
    with _server() as server, mock.patch("openai._base_client.INITIAL_RETRY_DELAY", 0.001):
        server.act = act
        options = JudgeOptions(
            backend="openai", model="m", base_url=server.url, concurrency=1, timeout=_SECONDS, attempts=2,
            cache=given.folder / "replies",
        )  # fmt: skip
        judge = make_judge(options)
        assert judge is not None
        started = time.monotonic()
        try:
            answers = ask(judge, prompts(_PROMPTS))
        except UserError as error:
            said = str(error)
        given.things = len(server.requests)
    assert time.monotonic() - started < 5 * _SECONDS * given.things + 5
    assert answers or 0 < len(said) < 2_000
    for answer, word in zip(answers, words(_PROMPTS), strict=False):
        assert answer is None or answer.startswith(str(word))

"""A small server that speaks `/v1/chat/completions` over real HTTP, and can be told to misbehave.

Its answer to a prompt is `echo: ` and the prompt's user message, unless `reply` says otherwise.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.judge.judge import Judge, JudgePrompt, make_judge
from d2e_sft.judge.options import JudgeOptions
from tests.servers import LocalServer, QuietHandler

KEY = "sk-never-to-be-seen"
REMINDER = "Begin with echo."
MakeJudge = Callable[..., Judge]


@dataclass(frozen=True)
class Misbehave:
    """What a request gets instead of its answer; a status of None sends the body as an answer with status 200."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    stall: float = 0
    drop: bool = False


class JudgeServer(LocalServer):
    """`plan` is taken from its front, a request each; an empty plan means good behaviour, unless `act` answers."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.plan: list[Misbehave | None] = []
        self.act: Callable[[QuietHandler], None] | None = None
        self.reply: Callable[[str], str] = lambda user: f"echo: {user}"
        self.delay = 0.0
        self.usage = True
        self.finish_reason = "stop"
        self.refuses_field: str | None = None
        self.refusal = b""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.under_way = 0
        self.most_under_way = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    @property
    def users(self) -> list[str]:
        """The user messages of all requests so far."""
        return [request["messages"][1]["content"] for request in self.requests]


class _Handler(QuietHandler):
    server: JudgeServer
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.times.append(time.monotonic())
            server.requests.append(asked)
            server.keys.append(self.headers.get("Authorization"))
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            plan = server.plan.pop(0) if server.plan else None
        try:
            if self.path != "/v1/chat/completions":
                self._send(404, b'{"error": {"message": "no such path"}}')
                return
            if server.act:
                server.act(self)
            elif server.refuses_field in asked:
                self._send(400, server.refusal)
            elif plan:
                self._misbehave(plan)
            else:
                self._complete(asked)
        finally:
            with server.lock:
                server.under_way -= 1

    def _complete(self, asked: dict[str, Any]) -> None:
        time.sleep(self.server.delay)
        text = self.server.reply(asked["messages"][1]["content"])
        self._send(200, completion(text, usage=self.server.usage, finish_reason=self.server.finish_reason))

    def _misbehave(self, plan: Misbehave) -> None:
        time.sleep(plan.stall)
        if plan.drop:
            self.close_connection = True
            self.connection.close()
            return
        self._send(plan.status or 200, plan.body, plan.headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.reply(status, body, {"Content-Type": "application/json", **(headers or {})})


_OK, _ERROR = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 500 Error\r\n"
# What a server sends that means harm: pieces with a pause after each; the last one is repeated for ever.
HARM: dict[str, tuple[list[bytes], float]] = {
    "nothing": ([b""], 0.1),
    "a status line without end": ([b"HTTP/1.1 200 ", b"O"], 0.05),
    "a head without end, dripped": ([_OK, b"X"], 0.05),
    "headers without end, dripped": ([_OK, b"X: y\r\n"], 0.05),
    "a head without end, flooded": ([_OK, b"X" * 4096], 0),
    "continuations without end": ([b"HTTP/1.1 100 Continue\r\n\r\n"], 0.001),
    "a body without end, dripped": ([_OK + b"\r\n", b" "], 0.05),
    "a body without end, flooded": ([_OK + b"\r\n", b" " * (1 << 20)], 0),
    "an error without end, dripped": ([_ERROR + b"\r\n", b" "], 0.05),
    "chunks without end, dripped": ([_OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"], 0.05),
    "a body that is too short": ([_OK + b"Content-Length: 1000000\r\n\r\n{}", b""], 0.1),
    "no HTTP": ([bytes(range(256)), b"\r\n"], 0.01),
}


def harm(handler: QuietHandler, kind: str) -> None:
    """Answer by one of HARM, until the client has gone."""
    handler.close_connection = True
    pieces, pause = HARM[kind]
    for piece in itertools.chain(pieces, itertools.repeat(pieces[-1])):
        handler.wfile.write(piece)
        time.sleep(pause)


def completion(text: str | None, *, usage: bool = True, finish_reason: str = "stop") -> bytes:
    """A chat completion as bytes: 10 prompt tokens, and a reply token for each word."""
    content: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}],
    }
    if usage:
        words = len((text or "").split())
        content["usage"] = {"prompt_tokens": 10, "completion_tokens": words, "total_tokens": 10 + words}
    return json.dumps(content).encode()


@pytest.fixture
def judge_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, a key, and no proxy."""
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.001)


@pytest.fixture
def server(judge_environment: None) -> Iterator[JudgeServer]:
    with JudgeServer() as running:
        yield running


@pytest.fixture
def judge(server: JudgeServer) -> MakeJudge:
    """Makes judges that ask the server."""

    def make(**options: Any) -> Judge:
        fields = {"backend": "openai", "model": "m", "base_url": server.url, "timeout": 5}
        made = make_judge(JudgeOptions(**{**fields, **options}))
        assert made is not None
        return made

    return make


# Questions to the server, which repeats what it is asked -------------------------------------------------------------


def prompts(count: int) -> list[JudgePrompt]:
    return [JudgePrompt("Repeat.", f"word {number}", label=f"sample s{number}") for number in range(count)]


def read_echo(reply: str) -> str | None:
    return reply.removeprefix("echo: ") if reply.startswith("echo: ") else None


def ask(judge: Judge, asked: list[JudgePrompt]) -> list[str | None]:
    return judge.ask(asked, read_echo, job="echo", reminder=REMINDER)


def words(count: int) -> list[str | None]:
    return [f"word {number}" for number in range(count)]

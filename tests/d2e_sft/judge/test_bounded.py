"""No server keeps a judge busy for ever, fills its memory, or is sent a key that is meant for another."""

from __future__ import annotations

import gzip
import time

import pytest

from d2e_sft.judge.http_client import LARGEST
from d2e_sft.util.errors import UserError
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.judge_server import KEY, JudgeServer, MakeJudge, completion
from tests.servers import QuietHandler


def pieces(handler: QuietHandler, piece: bytes, pause: float, status: int = 200) -> None:
    """A body without end."""
    handler.close_connection = True
    handler.send_response(status)
    handler.end_headers()
    while True:
        handler.wfile.write(piece)
        time.sleep(pause)


def headers_by_letters(handler: QuietHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(200):
        handler.wfile.write(b"X")
        time.sleep(0.1)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(
    ("piece", "pause", "said"),
    [(b" ", 0.05, "too slowly"), (b" " * (1 << 20), 0.0, f"more than {LARGEST >> 20} MiB")],
    ids=["drips", "endless"],
)
def test_a_body_without_end_is_given_up(
    server: JudgeServer, judge: MakeJudge, piece: bytes, pause: float, said: str, status: int
) -> None:
    server.act = lambda handler: pieces(handler, piece, pause, status)
    started = time.monotonic()
    with pytest.raises(UserError, match=f"{said}.*in the last of 2 attempts"):
        ask(judge(timeout=0.1, attempts=2), prompts(1))
    assert time.monotonic() - started < 20


def test_a_head_without_end_is_given_up(server: JudgeServer, judge: MakeJudge) -> None:
    server.act = headers_by_letters
    started = time.monotonic()
    with pytest.raises(UserError, match=r"too slowly, not all of it in 0\.8 s, in the last of 1 attempts"):
        ask(judge(timeout=0.2, attempts=1), prompts(1))
    assert time.monotonic() - started < 2


def test_a_request_with_a_head_without_end_is_sent_again(server: JudgeServer, judge: MakeJudge) -> None:
    def once(handler: QuietHandler) -> None:
        server.act = None
        headers_by_letters(handler)

    server.act = once
    assert ask(judge(timeout=0.2, attempts=2), prompts(1)) == words(1)


def test_a_compressed_answer_is_not_unpacked(server: JudgeServer, judge: MakeJudge) -> None:
    bomb = gzip.compress(b" " * 20_000_000)
    server.act = lambda handler: handler.reply(200, bomb, {"Content-Encoding": "gzip"})
    with pytest.raises(UserError, match=r"sends a compressed answer \(gzip\)"):
        ask(judge(attempts=2), prompts(1))


@pytest.mark.parametrize("status", [301, 308])
def test_a_redirect_gets_neither_key_nor_texts(server: JudgeServer, judge: MakeJudge, status: int) -> None:
    with JudgeServer() as other:
        server.act = lambda handler: handler.reply(status, b"", {"Location": f"{other.url}/chat/completions"})
        with pytest.raises(UserError, match=f"answered {status}, a redirect, which is not followed"):
            ask(judge(), prompts(1))
        assert other.keys == []
    assert server.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("wait", ["nan", "-1", "soon"])
def test_an_odd_wait_is_no_wait(server: JudgeServer, judge: MakeJudge, wait: str) -> None:
    def once(handler: QuietHandler) -> None:
        server.act = lambda handler: handler.reply(200, completion("echo: word 0"))
        handler.reply(429, b"[" * 100_000, {"Retry-After": wait})

    server.act = once
    assert ask(judge(), prompts(1)) == words(1)

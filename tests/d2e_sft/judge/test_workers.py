"""Threads that can be left: one Ctrl-C ends a run, whatever the server does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from d2e_sft.judge.workers import OverdueError, Workers
from tests.judge_server import JudgeServer, Misbehave

_CHILD = """
import signal, sys
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.messages import Prompt
from d2e_sft.judge.options import JudgeOptions
signal.signal(signal.SIGINT, signal.default_int_handler)
judge = make_judge(JudgeOptions(backend="openai", model="m", base_url=sys.argv[1], concurrency=4, timeout=60))
judge.ask([Prompt("Repeat.", f"word {n}") for n in range(40)], str, what="echo", reminder="")
"""


def test_one_ctrl_c_ends_a_run_against_a_server_that_stalls(server: JudgeServer) -> None:
    server.plan = [Misbehave(stall=60)] * 40
    child = subprocess.Popen([sys.executable, "-c", _CHILD, server.url], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(server.requests) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGINT)
    started = time.monotonic()
    _, printed = child.communicate(timeout=30)
    assert time.monotonic() - started < 15
    assert "waiting 3 s for 4 open requests" in printed
    assert "0 of 40 replies are kept" in printed


def test_each_item_is_worked_on_once_and_an_error_ends_the_work() -> None:
    done: list[int] = []
    workers = Workers(3, done.append, 20)
    workers.wait(10)
    assert sorted(done) == list(range(20))
    workers = Workers(1, lambda item: 1 // (3 - item), 20)
    with pytest.raises(ZeroDivisionError):
        workers.wait(10)


def test_what_takes_too_long_is_left_behind_and_delivers_nothing() -> None:
    go, delivered = threading.Event(), []

    def work(item: int) -> None:
        go.wait(20)
        workers.deliver(lambda: delivered.append(item))

    workers = Workers(2, work, 5)
    with pytest.raises(OverdueError):
        workers.wait(0.1)
    assert workers.open_items() == 2
    workers.leave(0.1)
    go.set()
    workers.leave(5)
    assert delivered == []
    assert workers.open_items() == 0

"""Replies are kept: a second run, damage, a full disk, and runs that end too soon."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.d2e_sft.judge.echo import ask, prompts, words
from tests.judge_server import KEY, JudgeServer, MakeJudge, Misbehave, completion


@pytest.mark.parametrize(
    "changed",
    [{"model": "other"}, {"max_tokens": 9}, {"temperature": 0.5}, {"base_url": "http://localhost:{port}/v1"}],
)
def test_a_reply_is_not_taken_for_one_to_another_question(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch, changed: dict[str, object]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    ask(judge(), prompts(1))
    options = {k: v.format(port=server.server_port) if isinstance(v, str) else v for k, v in changed.items()}
    assert ask(judge(**options), prompts(1)) == words(1)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "damage", [b"", b'{"text": "echo: wo', b'{"text": 3}', b"[]", b"\xff\xfe", b'{"text": "echo: x", "more": 1}']
)
def test_a_damaged_reply_is_asked_for_again_and_rewritten(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(judge(), prompts(1))
    (kept,) = (tmp_path / "cache" / "judge").rglob("*.json")
    whole = kept.read_bytes()
    kept.write_bytes(damage)
    assert ask(judge(), prompts(1)) == words(1)
    assert kept.read_bytes() == whole
    assert f"1 kept reply is damaged, such as {kept}; their prompts are asked again" in capsys.readouterr().err


def test_a_kept_reply_of_gigabytes_is_damaged_and_not_read_whole(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(judge(), prompts(1))
    (kept,) = (tmp_path / "cache" / "judge").rglob("*.json")
    os.truncate(kept, 3 << 30)  # zeros, which take no room on the disk
    tracemalloc.start()
    assert ask(judge(), prompts(1)) == words(1)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert "1 kept reply is damaged" in capsys.readouterr().err
    assert kept.stat().st_size < 1000


def test_of_kept_replies_only_the_readings_are_collected(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    server.reply = lambda user: f"echo: {user}" + " " * (1 << 19)
    for _ in ("asked", "kept"):
        tracemalloc.start()
        read = judge(concurrency=1).ask(prompts(160), lambda reply: reply.split()[-1], what="echo", reminder="")
        assert read == [str(number) for number in range(160)]
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # of 80 in all
        tracemalloc.stop()
    assert len(server.requests) == 160


def test_a_reply_that_was_changed_or_lies_in_anothers_place_is_no_reply(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    ask(judge(), prompts(2))
    first, second = (tmp_path / "cache" / "judge").rglob("*.json")
    first.write_bytes(first.read_bytes().replace(b"echo: ", b"Echo: "))
    assert ask(judge(), prompts(2)) == words(2)
    second.write_bytes(first.read_bytes())
    assert ask(judge(), prompts(2)) == words(2)
    assert len(server.requests) == 4


def test_replies_under_way_when_a_run_fails_are_kept(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [
        Misbehave(body=completion("echo: slow"), stall=1.5),
        Misbehave(status=401, body=b"{}", stall=0.1),
    ]
    with pytest.raises(UserError, match="1 of 9 replies are kept"):
        ask(judge(concurrency=2), prompts(9))
    assert len(server.requests) <= 3


def test_the_key_is_nowhere_on_the_disk_and_in_no_message(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    server.plan = [None, Misbehave(status=401, body=f'{{"error": "wrong key {KEY}"}}'.encode())]
    with pytest.raises(UserError, match=r"wrong key \[key\]") as caught:
        ask(judge(concurrency=1), prompts(2))
    assert KEY not in str(caught.value)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files
    assert all(KEY.encode() not in path.read_bytes() for path in files)


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_asked(
    server: JudgeServer, judge: MakeJudge, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"replies cannot be kept \(File exists\)") as caught:
        ask(judge(cache=tmp_path / "file"), prompts(1))
    assert "--judge-cache" in (caught.value.remedy or "")
    assert server.requests == []


def test_a_reply_that_cannot_be_written_ends_the_run(
    server: JudgeServer, judge: MakeJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("d2e_sft.util.files.sync", full)
    with pytest.raises(UserError, match=r"cannot be kept \(No space left on device\); 0 of 5 replies are kept"):
        ask(judge(concurrency=1), prompts(5))
    assert len(server.requests) == 1


_CHILD = """
import signal, sys
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.messages import Prompt
from d2e_sft.judge.options import JudgeOptions
# A shell's background jobs, and so these tests in one, are started with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = {"base_url": sys.argv[1], "timeout": sys.argv[2], "concurrency": 2}
judge = make_judge(JudgeOptions(backend="openai", model="m", **options))
judge.ask([Prompt("Repeat.", f"word {n}") for n in range(20)], str, what="echo", reminder="")
"""


def _interrupted(server: JudgeServer, after: int, timeout: float) -> str:
    """Press Ctrl-C in a run of 20 prompts after a number of requests; returns what the run prints."""
    command = [sys.executable, "-c", _CHILD, server.url, str(timeout)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while len(server.requests) < after and time.monotonic() < deadline:
            time.sleep(0.005)
        child.send_signal(signal.SIGINT)
        printed = child.communicate(timeout=30)[1]
    assert child.returncode != 0
    return printed


def test_an_interrupted_run_resumes(server: JudgeServer, judge: MakeJudge, tmp_path: Path) -> None:
    server.delay = 0.15  # so that the run cannot finish before it is ended, on a slow machine either
    printed = _interrupted(server, 8, timeout=60)
    kept = len(list((tmp_path / "cache" / "judge").rglob("*.json")))
    assert 6 <= kept < 20
    assert f"echo: stopped; {kept} of 20 replies are kept in" in printed
    assert len(server.requests) == kept  # requests under way were waited for
    server.delay = 0
    assert ask(judge(), prompts(20)) == words(20)
    assert len(server.requests) == 20


def test_one_ctrl_c_ends_a_run_against_a_server_that_stalls(server: JudgeServer) -> None:
    server.plan = [Misbehave(stall=60)] * 40
    printed = _interrupted(server, 2, timeout=1)
    assert "waiting at most 1 s for open requests" in printed
    assert "0 of 20 replies are kept" in printed

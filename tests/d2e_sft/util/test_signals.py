"""SIGTERM as a request, and processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from d2e_sft.util.paths import safe_environment
from d2e_sft.util.signals import PARENT, REQUEUE, on_sigterm


def test_sigterm_ends_at_once_with_the_status_for_schedulers(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with on_sigterm("the same command resumes"), pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == REQUEUE == 75
    assert capsys.readouterr().err == "d2e: ended by SIGTERM; the same command resumes\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_is_kept_for_whoever_defers_it() -> None:
    with on_sigterm("…") as termination:
        termination.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.asked


_CHILD = """
import os, time
from d2e_sft.util.paths import safe_environment
from d2e_sft.util.signals import end_with_parent

end_with_parent()
parent = os.getppid()
print(parent, flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
print("runs on", flush=True)
"""
_START = "import os, subprocess, sys; subprocess.run([sys.executable, sys.argv[1]], env={{**os.environ, {}}})"
_ACCELERATE = ("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signal is Linux's")
@pytest.mark.parametrize(
    ("start", "ends"),
    [
        (("-c", _START.format(f"{PARENT!r}: str(os.getpid())")), True),
        (("-c", _START.format("'TORCHELASTIC_RUN_ID': 'none'")), True),
        (_ACCELERATE, True),
        (("-c", _START.format("'ACCELERATE_MIXED_PRECISION': 'no'")), False),
    ],
    ids=["ours", "of several", "the only one of accelerate", "of a user"],
)
def test_a_process_ends_with_its_launcher(tmp_path: Path, start: tuple[str, ...], ends: bool) -> None:
    child = tmp_path / "child.py"
    child.write_text(_CHILD)
    command = [sys.executable, *start, str(child)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=safe_environment()) as started:
        assert started.stdout is not None
        assert int(started.stdout.readline()) == started.pid
        started.kill()
        assert started.stdout.read() == ("" if ends else "runs on\n"), "the pipe closes with the child"

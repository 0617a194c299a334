"""SIGTERM as a request, and processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the signal is Linux's")
@pytest.mark.parametrize("variable", [PARENT, "TORCHELASTIC_RUN_ID"])
def test_a_process_ends_with_its_parent(variable: str) -> None:
    child = (
        "import sys, time; from d2e_sft.util.signals import end_with_parent; end_with_parent(); "
        "print('up', flush=True); time.sleep(60)"
    )
    parent = (
        f"import os, subprocess, sys, time; os.environ[{variable!r}] = str(os.getpid())\n"
        f"process = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, process_group=0)\n"
        "process.stdout.readline(); print(process.pid, flush=True); time.sleep(60)"
    )
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    started.kill()
    started.wait()
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                break
        time.sleep(0.01)
    else:
        assert not os.path.exists(f"/proc/{pid}"), "it runs on"

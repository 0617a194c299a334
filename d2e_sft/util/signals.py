"""Orderly ends: SIGTERM, after which the work can be resumed elsewhere, and the end of the parent process.

Slurm, Kubernetes and spot machines send SIGTERM some time before SIGKILL. If the same command can resume, the exit
status is `REQUEUE`: a scheduler may start it again.
"""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

REQUEUE = os.EX_TEMPFAIL  # 75 in sysexits.h: a temporary failure
PARENT = "D2E_PARENT"  # environment variable with the id of the process that a child must not outlive
_OF_SEVERAL = "TORCHELASTIC_RUN_ID"  # set by `accelerate launch` and torchrun in each of several workers
_OF_ONE = re.compile(rb"(^|[\0/])accelerate(-launch|\0launch|[./]commands[./]launch(\.py)?)\0")  # its command line
_PR_SET_PDEATHSIG = 1


class Termination:
    """A SIGTERM request inside `on_sigterm`.

    Attributes:
        deferred: True if the caller polls `asked` and ends in good order; otherwise the process ends at the signal.
        asked: SIGTERM has arrived.
    """

    def __init__(self, how_to_resume: str) -> None:
        self.deferred = False
        self.asked = False
        self._how_to_resume = how_to_resume

    def receive(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        self.asked = True
        if not self.deferred:
            self.end()

    def end(self, kept: str | None = None) -> None:
        """Report what was kept, or how to resume, and exit with status `REQUEUE`."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"d2e: ended by SIGTERM; {kept or self._how_to_resume}", file=sys.stderr, flush=True)
        raise SystemExit(REQUEUE)


@contextmanager
def on_sigterm(how_to_resume: str) -> Iterator[Termination]:
    """Exit with status `REQUEUE` at SIGTERM, in good order if the caller defers it, and print `how_to_resume`.

    Outside the main thread signals are not handled.
    """
    termination = Termination(how_to_resume)
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return
    before = signal.signal(signal.SIGTERM, termination.receive)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent() -> None:
    """End this process with the one named in `PARENT`, or with the launcher that started it; on Linux only.

    A launcher that is killed cannot end its workers, which would keep training into the folder of the next run.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    expected = int(os.environ.get(PARENT) or (parent if _OF_SEVERAL in os.environ or _is_accelerate(parent) else 0))
    if expected:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != expected:  # it ended before the call
            os.kill(os.getpid(), signal.SIGKILL)


def _is_accelerate(process: int) -> bool:
    """Whether a process is `accelerate launch`, which sets no variable of its own for a single worker."""
    try:
        return _OF_ONE.search(Path(f"/proc/{process}/cmdline").read_bytes()) is not None
    except OSError:  # it has ended
        return False

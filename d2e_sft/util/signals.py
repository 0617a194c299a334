"""What ends a process from outside: SIGTERM, after which the work can go on elsewhere, and the end of its parent.

Slurm, Kubernetes and spot machines send SIGTERM some time before SIGKILL. Where the same command goes on from what was
kept, the exit status is `REQUEUE`: a scheduler may start it again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

REQUEUE = os.EX_TEMPFAIL  # 75, in sysexits.h: a temporary failure, the caller is to try again
PARENT = "D2E_PARENT"  # the environment's name of the process that a child is to end with
_PR_SET_PDEATHSIG = 1


class Termination:
    """SIGTERM as a request, while `on_sigterm` is at work.

    Attributes:
        deferred: whoever sets it looks at `asked` from time to time and ends in good order; else the process ends at
            the signal.
        asked: SIGTERM has come.
    """

    def __init__(self, goes_on: str) -> None:
        self.deferred = False
        self.asked = False
        self._goes_on = goes_on

    def receive(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """The signal's handler."""
        self.asked = True
        if not self.deferred:
            self.end()

    def end(self, kept: str = "") -> None:
        """Say what is kept, and end with `REQUEUE`.

        Raises:
            SystemExit: always.
        """
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"d2e: ended by SIGTERM; {kept}{self._goes_on}", file=sys.stderr, flush=True)
        raise SystemExit(REQUEUE)


@contextmanager
def on_sigterm(goes_on: str) -> Iterator[Termination]:
    """End with `REQUEUE` at SIGTERM, in good order where the yielded request is deferred.

    Outside of the main thread, which alone can be interrupted, signals stay as they are.

    Args:
        goes_on: says how the work goes on.
    """
    termination = Termination(goes_on)
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return
    before = signal.signal(signal.SIGTERM, termination.receive)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent() -> None:
    """Have this process killed when the one that started it ends, however that ends; where it was told which it is.

    A launcher that SIGKILL ends cannot end its workers, which would go on training into a folder that the next run
    takes for its own. Linux alone has such a signal; elsewhere nothing happens.
    """
    parent = os.environ.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before it could be heard of
        os.kill(os.getpid(), signal.SIGKILL)

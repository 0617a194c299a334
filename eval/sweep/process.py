"""`d2e` in a process of its own, with its output in a log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from d2e_sft.util.paths import safe_environment

_TAIL = 12  # lines of a failed step's log that are shown


def run_logged(arguments: Sequence[str], log: Path, lock: int, environment: Mapping[str, str]) -> int:
    """Run `d2e` with these arguments, add what it prints to the log, and return its status.

    Args:
        lock: the descriptor of the folder's lock, which the process inherits.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        output.write(f"\n$ d2e {' '.join(arguments)}\n# {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        output.flush()
        return _run(arguments, output, lock, {**safe_environment(environment), "PYTHONUNBUFFERED": "1"})


def _run(arguments: Sequence[str], output: IO[str], lock: int, environment: Mapping[str, str]) -> int:
    return subprocess.run(
        [sys.executable, "-m", "d2e_sft.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        pass_fds=(lock,),
        check=False,
    ).returncode


def last_lines(log: Path) -> str:
    """The end of a log, indented, for a message."""
    lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    return "\n".join(f"    {line}" for line in [line for line in lines if line.strip()][-_TAIL:])

"""`d2e` as the tests call it: in this process, or in one of its own that can be made to kill itself.

Those processes are forked from a server that has imported torch and transformers and computed nothing, so each starts
in a fraction of a second; it is `d2e train` or `d2e eval` that runs in them, and SIGKILL that ends them.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from d2e_sft import cli

_FORKS = multiprocessing.get_context("forkserver")
_MODELS = ("gpt2", "llama")
_FORKS.set_forkserver_preload(
    ["d2e_sft.train.run", "d2e_sft.cli", "peft", *(f"transformers.models.{name}.modeling_{name}" for name in _MODELS)]
)


def d2e(*arguments: str | Path | int) -> int:
    """Run the command line; the exit status."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@dataclass(frozen=True)
class Called:
    """What a command returned and printed."""

    status: int
    out: str
    err: str


def call(*arguments: str | Path | int) -> Called:
    """Run the command line and keep what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = d2e(*arguments)
    return Called(status, out.getvalue(), err.getvalue())


def output_of(*arguments: str | Path | int) -> str:
    """Run a command that must succeed; what it prints on stdout."""
    called = call(*arguments)
    assert called.status == 0, called.err
    return called.out


def refusal_of(*arguments: str | Path | int) -> str:
    """Run a command that must be refused; its error message."""
    called = call(*arguments)
    assert called.status in (1, 2), called.out
    assert "Traceback" not in called.err
    return called.err


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the `call`-th call of a function, before or after it does its work."""

    function: str
    call: int = 1
    after: bool = False


def after_step(step: int) -> Kill:
    """SIGKILL right after the process has logged its `step`-th step (and before it saves a checkpoint there)."""
    return Kill("d2e_sft.train.trainer:D2ETrainer.log", call=step, after=True)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (minus the signal that killed it) and what it printed."""

    status: int | None
    printed: str


def train(
    folder: Path, arguments: Sequence[str | Path], kill: Kill | None = None, environment: dict[str, str] | None = None
) -> Ended:
    """`d2e train` with the arguments, in a process of its own; `folder` takes what it prints."""
    return finish(start(folder, arguments, kill, environment))


def evaluate(folder: Path, arguments: Sequence[str | Path], kill: Kill | None = None) -> Ended:
    """`d2e eval` in the same way."""
    return finish(start(folder, arguments, kill, verb="eval"))


def forked(arguments: Sequence[str], output: IO[str], environment: Mapping[str, str], kill: Kill | None = None) -> int:
    """The status of `d2e` in a process whose libraries are loaded already; `output` takes what it prints."""
    process = _FORKS.Process(target=_run, args=([*arguments], kill, dict(environment), Path(output.name)))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def start(
    folder: Path,
    arguments: Sequence[str | Path],
    kill: Kill | None,
    environment: dict[str, str] | None = None,
    verb: str = "train",
) -> tuple[Any, Path]:
    """As `train`, without waiting for the end."""
    return _start(_run, folder, [verb, *map(str, arguments)], kill, environment or {})


def launch(folder: Path, launcher: str, *arguments: str | Path) -> Ended:
    """Call a launcher, given as `module:function`; it and the processes that it starts are forked, without GPUs.

    torch's launcher, which accelerate's calls, takes its options from `PET_…`.
    """
    return finish(start_launch(folder, launcher, *arguments), timeout=300)


def start_launch(folder: Path, launcher: str, *arguments: str | Path) -> tuple[Any, Path]:
    """As `launch`, without waiting for the end."""
    environment = {"PET_RUN_PATH": "1", "PET_START_METHOD": "fork", "CUDA_VISIBLE_DEVICES": ""}
    return _start(_launch, folder, launcher, [*map(str, arguments)], environment)


def _start(target: Callable[..., None], folder: Path, *arguments: Any) -> tuple[Any, Path]:
    output = folder / f"printed-{len(list(folder.glob('printed-*')))}.txt"
    output.touch()
    process = _FORKS.Process(target=target, args=(*arguments, output))
    process.start()
    return process, output


def finish(started: tuple[Any, Path], timeout: float = 60) -> Ended:
    """Wait for a started command; one that does not end is killed, and has no status."""
    process, output = started
    process.join(timeout)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    return Ended(status, output.read_text(encoding="utf-8", errors="replace"))


def _run(arguments: list[str], kill: Kill | None, environment: dict[str, str], output: Path) -> None:
    _enter(environment, output)
    if kill:
        _arm(kill)
    cli.main(arguments)


def _launch(launcher: str, arguments: list[str], environment: dict[str, str], output: Path) -> None:
    _enter(environment, output)
    sys.argv[1:] = arguments
    pkgutil.resolve_name(launcher)()


def _enter(environment: dict[str, str], output: Path) -> None:
    target = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.environ.update(environment)
    gc.freeze()  # imported modules are no garbage
    import torch

    torch.set_num_threads(1)  # a sum over several threads may be rounded otherwise from run to run


def _arm(kill: Kill) -> None:
    module, _, path = kill.function.partition(":")
    holder_path, _, name = path.rpartition(".")
    holder = pkgutil.resolve_name(f"{module}:{holder_path}")
    original = getattr(holder, name)
    calls = 0

    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == kill.call and not kill.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == kill.call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, armed)

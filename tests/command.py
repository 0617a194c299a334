"""`d2e` as the tests call it: in this process, or in one of its own that can be made to kill itself.

Those processes are forked from a server that has imported torch and transformers and computed nothing, so each starts
in a fraction of a second. `d2e train`, `d2e eval` or a launcher runs in them, and SIGKILL ends them.
"""

import atexit
import gc
import importlib
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
from unittest.mock import patch

import click

from d2e_sft import cli

_FORKS = multiprocessing.get_context("forkserver")
_MODELS = ("gpt2", "llama")
_FORKED_WORKERS = {"PET_RUN_PATH": "1", "PET_START_METHOD": "fork", "CUDA_VISIBLE_DEVICES": ""}
_FORKS.set_forkserver_preload(
    [
        "d2e_sft.train.trainer", "d2e_sft.cli", "d2e_sft.commands.train", "eval.commands.evaluate",
        "eval.run.evaluate", "eval.run.engines.in_process", "peft", "deepspeed", "rich.table",
        *(f"transformers.models.{name}.modeling_{name}" for name in _MODELS),
    ]
)  # fmt: skip


def d2e(*arguments: str | Path | int) -> int:
    """Run the command line; the exit status."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def verbs(command: click.Command = cli.d2e, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    """Every verb and subcommand by its words."""
    found = {words: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found |= verbs(inner, (*words, name))
    return found


@dataclass(frozen=True)
class Called:
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


def program(folder: Path, function: str, *arguments: str | Path, **environment: str) -> Ended:
    """Run a program, given as `module:function`, in the same way."""
    return finish(_start(_program, folder, function, [*map(str, arguments)], environment), timeout=300)


def launch(folder: Path, launcher: str, *arguments: str | Path) -> Ended:
    """Run torch's launcher, or accelerate's, which calls it; the processes that it starts are forked too."""
    return program(folder, launcher, *arguments, **_FORKED_WORKERS)


def launched(folder: Path, *arguments: str | Path) -> tuple[Any, Path]:
    """Start the command that `d2e … --launch` composes, on CPUs, with all its processes forked."""
    commands: list[list[str]] = []
    composed = patch("d2e_sft.train.launch.launch", lambda command: commands.append(command) or 0)
    with composed, patch("d2e_sft.train.launch.accelerators", lambda: 0):
        assert d2e(*arguments) == 0
    [[_, _, launcher, *options]] = commands
    at = options.index("-m")
    module = importlib.import_module(options[at + 1])
    script = Path(str(module.__file__))
    script = script.with_name("__main__.py") if script.name == "__init__.py" else script
    options[at : at + 2] = [str(script)]
    return _start(_program, folder, f"{launcher}:main", options, _FORKED_WORKERS)


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


def _program(function: str, arguments: list[str], environment: dict[str, str], output: Path) -> None:
    _enter(environment, output)
    sys.argv[1:] = arguments
    try:
        pkgutil.resolve_name(function)()
    finally:
        atexit._run_exitfuncs()  # a forked process leaves them out


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

"""`d2e train --launch NAME`, `d2e eval --launch ddp`: the same work on several processes, by `accelerate launch`.

The command composed here runs this module as a program, with accelerate's arguments. It reports a failed process in
one line, since accelerate's stack trace would hide the error message of that process.
"""

import importlib.util
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.paths import bundled, leave_working_folder, safe_environment
from d2e_sft.util.signals import PARENT, REQUEUE, end_with_parent
from d2e_sft.util.terminal import say

_OUT_OF_MEMORY = (
    "; most often the machine was out of memory\n"
    "  remedy: a smaller batch (train.per_device_train_batch_size; d2e eval --batch-size).\n"
    "  Training with --launch zero3 or fsdp2 shards the model over the processes."
)


def launchers() -> list[str]:
    """Values of `--launch`: the accelerate configurations of this installation."""
    return sorted(file.stem for file in _configurations().glob("*.yaml"))


def launch_command(
    name: str,
    arguments: Sequence[str],
    *,
    module: str = "d2e_sft.train",
    processes: int | None = None,
    machines: int | None = None,
    machine_rank: int | None = None,
    main_address: str | None = None,
) -> list[str]:
    """Return the `accelerate launch` command that runs a module with `arguments` on several processes.

    Args:
        arguments: Of `d2e train` (recipe, overrides, options), or of the module.
        module: Run by each process; `d2e_sft.cli` takes a whole command line.
        processes: On this machine; None means one per accelerator.
        machines: How many train together; None means only this one.
        machine_rank: This one's place among them, from 0.
        main_address: The `HOST:PORT` of machine 0, where all connect; it is needed from two machines on.
    """
    check_launcher(name)
    accelerator_count, machines = accelerators(), machines or 1
    if name.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            f"--launch {name}: needs DeepSpeed, which is not installed",
            remedy="pip install 'd2e-sft[train-gpu]', or use --launch fsdp2 or ddp",
        )
    if name == "fsdp2" and not accelerator_count:
        raise UserError(
            "--launch fsdp2: needs GPUs; accelerate ignores FSDP2 on a CPU",
            remedy="use --launch ddp or zero3, which run on a CPU",
        )
    return [
        sys.executable, "-m", "d2e_sft.train.launch",
        "--config_file", str(_configurations() / f"{name}.yaml"),
        "--num_processes", str(_processes(processes, accelerator_count) * machines),
        *_meeting_point(machines, machine_rank or 0, main_address),
        "-m", module, *arguments,
    ]  # fmt: skip


def planned_processes(name: str, processes: int | None, machines: int | None) -> int:
    """Return the processes of a planned launch over all machines; this machine need not have accelerators for them."""
    check_launcher(name)
    return (machines or 1) * _processes(processes, 0 if processes else accelerators())


def launch(command: Sequence[str]) -> int:
    """Print and run a launch command; return its exit status, 128 + N if signal N ended it."""
    say(shlex.join(command))
    environment = {**safe_environment(), PARENT: str(os.getpid())}
    if not accelerators():
        environment.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed guesses it too, with a warning per process
    process = subprocess.Popen(command, env=environment)
    # Pass SIGTERM on and wait, otherwise the launcher's processes would keep running.
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the terminal interrupts the launcher too
        process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return exit_status(status)


def exit_status(returncode: int) -> int:
    """A return code as a shell reports it: 128 + N if signal N ended the process (-N in Python)."""
    return returncode if returncode >= 0 else 128 - returncode


def _configurations() -> Path:
    return bundled("launch") / "accelerate"


def accelerators() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def check_launcher(name: str) -> None:
    if name not in launchers():
        raise UserError(
            f"--launch {name}: no such launcher.{did_you_mean(name, launchers())}",
            remedy=f"choose one of {', '.join(launchers())}",
        )


def _processes(processes: int | None, accelerator_count: int) -> int:
    if processes is None and not accelerator_count:
        raise UserError(
            "--launch: needs a number of processes, as this machine has no accelerator", "add --processes N"
        )
    if processes is not None and accelerator_count and processes > accelerator_count:
        raise UserError(
            f"--processes {processes}: this machine has {accelerator_count} accelerators, and each process needs one",
            remedy=f"use --processes {accelerator_count} or fewer",
        )
    return processes or accelerator_count


def _meeting_point(machines: int, rank: int, address: str | None) -> list[str]:
    if not 0 <= rank < machines:
        raise UserError(
            f"--machine-rank {rank}: expected 0 to {machines - 1}, as there are {machines} machines (--machines)"
        )
    if machines == 1:
        return ["--num_machines", "1", "--main_process_port", "0"]  # 0: any free port, for runs side by side
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(
            f"--main-address {address or '(not given)'}: expected HOST:PORT of machine 0",
            remedy="give all machines the same, for example --main-address 10.0.0.1:29500",
        )
    return [
        "--num_machines", str(machines), "--machine_rank", str(rank),
        "--main_process_ip", host, "--main_process_port", port,
    ]  # fmt: skip


def main() -> None:
    """Run accelerate's launcher; exit with the status of the process that failed first, 128 + N after signal N.

    It ends with its parent process, and its workers end with it. SIGTERM goes to the workers, which save a checkpoint.
    """
    end_with_parent()
    os.environ[PARENT] = str(os.getpid())
    import psutil
    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # Failures are reported below.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    # torch's own handler gives the workers 30 seconds, too few to save a large model.
    os.environ["PET_SIGNALS_TO_HANDLE"] = "SIGINT,SIGHUP,SIGQUIT"
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in psutil.Process().children()])
    os.environ.update(safe_environment())  # if this command was typed by hand
    try:
        accelerate_launch()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        if code == REQUEUE:
            pass  # it has reported the reason
        elif code >= 0:
            print(f"d2e: process {rank} exited with status {code}; its message is above", file=sys.stderr)
        else:
            reason = _OUT_OF_MEMORY if -code == signal.SIGKILL else ""
            print(f"d2e: error: process {rank} was ended by {signal.Signals(-code).name}{reason}", file=sys.stderr)
        sys.exit(exit_status(code))
    except subprocess.CalledProcessError as error:  # a single process
        sys.exit(exit_status(error.returncode))
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    leave_working_folder()
    main()

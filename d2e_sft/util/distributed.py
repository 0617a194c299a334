"""Join the processes of a launch into one group, and share the main process's decisions."""

import atexit
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, Literal, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, broadcast_object_list, gather_object

from d2e_sft.util.errors import UserError

T = TypeVar("T")
_RELEASING = 0.2  # seconds


def process_state(*, patience: timedelta | None = None) -> PartialState:
    """Join the launcher's processes into one group, over gloo on a machine without an accelerator.

    A process waits `patience` for the others before it assumes that they died; None is torch's default. Raises
    UserError if the processes do not form one group, so that each would train on all the data. Also if training would
    not run under the DeepSpeed or FSDP that the launcher asks for.
    """
    on_cpu = not torch.accelerator.is_available()
    if on_cpu and asked_for("FSDP"):
        raise UserError(
            "fsdp2: this machine has no accelerator, and accelerate ignores FSDP without one",
            remedy="use launch/accelerate/ddp.yaml or zero3.yaml, or a machine with GPUs",
        )
    if on_cpu and asked_for("DEEPSPEED") and "LOCAL_RANK" in os.environ:
        # DeepSpeed would compile collectives of its own, which takes a minute and a C++ compiler.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # cpu=True would select DDP over gloo; without a backend each process would be rank 0 of 1.
        state = PartialState(backend="gloo")
    else:
        # Without an accelerator, accelerate joins processes only if cpu=True.
        options: dict[str, Any] = {} if patience is None else {"timeout": patience}
        state = PartialState(cpu=on_cpu, **options)
    # torch renamed two collectives and warns at every call that DeepSpeed makes.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.c10d_logger")
    refuse_without_deepspeed(state)
    # `accelerate launch --cpu` with several processes starts only one and sets an address but no size.
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UserError(
            "MASTER_ADDR is set but WORLD_SIZE is not: several processes were meant to be launched, but only one runs",
            remedy="launch with `--launch ddp --processes N`; for a single process unset MASTER_ADDR",
        )
    launched = os.environ.get("WORLD_SIZE", "1")
    if str(state.num_processes) != launched:
        raise UserError(
            f"{launched} processes were launched, but training sees {state.num_processes}",
            remedy="launch with `accelerate launch --config_file launch/accelerate/ddp.yaml -m d2e_sft.train RECIPE`",
        )
    if state.num_processes > 1:
        wait_for_gloo_at_exit()
    return state


def refuse_without_deepspeed(state: PartialState) -> None:
    """Raise UserError if DeepSpeed was asked for and training would run without it, as with ACCELERATE_USE_CPU."""
    if asked_for("DEEPSPEED") and state.distributed_type != DistributedType.DEEPSPEED:
        raise UserError(
            f"DeepSpeed was asked for (deepspeed=…, or ACCELERATE_USE_DEEPSPEED), but training would run as "
            f"{state.distributed_type.value}",
            remedy="launch with `d2e train RECIPE --launch zero3 --processes N`, or a script with `torchrun`; leave "
            "out use_cpu and ACCELERATE_USE_CPU",
        )


@cache
def wait_for_gloo_at_exit() -> None:
    """Give gloo's threads time to release their last tensors before Python ends.

    A thread that does so later aborts the process (torch 2.13), and the launcher reports a finished run as failed.
    `destroy_process_group` waits for the threads only if nothing else refers to the group, as a model in DDP does.
    """
    atexit.register(time.sleep, _RELEASING)


def asked_for(engine: Literal["DEEPSPEED", "FSDP", "PARALLELISM_CONFIG"]) -> bool:
    """Whether `accelerate launch` was given a configuration for this engine."""
    return os.environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true"


@contextmanager
def without_launcher_precision() -> Iterator[None]:
    """Hide the launcher's precision inside, which transformers would prefer over float32."""
    name = "ACCELERATE_MIXED_PRECISION"
    of_launcher = os.environ.pop(name, None)
    try:
        yield
    finally:
        if of_launcher is not None:
            os.environ[name] = of_launcher


def same_everywhere(state: PartialState, name: str, value: str) -> None:
    """Raise UserError, with each process's value, unless a value is the same in all processes."""
    if state.num_processes == 1:
        return
    values = gather_object([value])
    if len(set(values)) > 1:
        shown = ", ".join(f"process {rank}: {text}" for rank, text in enumerate(values))
        raise UserError(f"{name} differ between the processes ({shown})", "give all machines the same files")


def from_all(state: PartialState, decide: Callable[[], T]) -> list[T]:
    """Return each process's result, in order, or raise the first UserError of one in every process."""
    try:
        outcome: T | UserError = decide()
    except UserError as error:
        outcome = error
    outcomes = gather_object([outcome]) if state.num_processes > 1 else [outcome]
    for of_process in outcomes:
        if isinstance(of_process, UserError):
            raise of_process
    return outcomes  # type: ignore[return-value]


def broadcast_from_main(state: PartialState, decide: Callable[[], T]) -> T:
    """Return the main process's result, or raise its UserError or OSError, in every process."""
    outcome: list[T | UserError | OSError | None] = [None]
    if state.is_main_process:
        try:
            outcome = [decide()]
        except (UserError, OSError) as error:
            outcome = [error]
    broadcast_object_list(outcome)
    answer = outcome[0]
    if isinstance(answer, UserError | OSError):
        raise answer
    return answer  # type: ignore[return-value]

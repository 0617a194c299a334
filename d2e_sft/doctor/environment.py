"""What the environment says: a Slurm job or not, and the variables that change how d2e behaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

import torch

from d2e_sft.doctor.finding import Finding

_TOPIC = "environment"
_SHOWN = (
    "D2E_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WANDB_MODE",
    "ACCELERATE_MIXED_PRECISION", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG",
)  # fmt: skip


def check_environment() -> Iterator[Finding]:
    """Slurm, and the variables that are set."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield from slurm(os.environ, devices, can_submit=shutil.which("sbatch") is not None)
    given = [f"{name}={os.environ[name]}" for name in _SHOWN if name in os.environ]
    yield Finding(_TOPIC, "variables", "ok", ", ".join(given) or "none of d2e's are set")


def slurm(environment: Mapping[str, str], devices: int, *, can_submit: bool) -> Iterator[Finding]:
    """Where in a Slurm cluster this is, and whether the job has what training needs.

    Args:
        devices: CUDA devices that torch finds.
        can_submit: `sbatch` is found.
    """
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        text = "a login node: submit with sbatch launch/slurm/train.sbatch" if can_submit else "not on a Slurm cluster"
        yield Finding(_TOPIC, "slurm", "ok", text)
        return
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    given = environment.get("SLURM_GPUS_ON_NODE")
    text = f"job {job}, {nodes} node{'s' * (nodes != '1')}, {given or 'no'} GPUs on this one"
    if given is None:
        yield Finding(_TOPIC, "slurm", "warn", text, "ask for GPUs: sbatch --gpus-per-node N")
    elif given.isdecimal() and int(given) > devices:
        remedy = "look at the torch build and CUDA_VISIBLE_DEVICES; inside srun, a task may be bound to fewer GPUs"
        yield Finding(_TOPIC, "slurm", "warn", f"{text}, but torch finds {devices}", remedy)
    else:
        yield Finding(_TOPIC, "slurm", "ok", text)
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    if restarts != "0":
        yield Finding(_TOPIC, "requeued", "ok", f"{restarts} times so far")

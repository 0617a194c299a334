"""The environment of d2e: Slurm, variables, launchers and compilers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping

import torch

from d2e_sft.doctor.finding import Finding
from d2e_sft.train.launch import accelerators, launch_command, launchers
from d2e_sft.util.errors import UserError

_SHOWN = (
    "D2E_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WANDB_MODE",
    "ACCELERATE_MIXED_PRECISION", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG",
)  # fmt: skip


def check_environment() -> Iterator[Finding]:
    """Report Slurm, and the variables that are set."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield from slurm(os.environ, devices, can_submit=shutil.which("sbatch") is not None)
    given = [f"{name}={os.environ[name]}" for name in _SHOWN if name in os.environ]
    yield Finding("variables", "ok", ", ".join(given) or "none set")


def slurm(environment: Mapping[str, str], devices: int, *, can_submit: bool) -> Iterator[Finding]:
    """Report whether this is a Slurm login node (`sbatch` is found) or job, and whether torch finds the job's GPUs."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        text = "a login node: submit with sbatch launch/slurm/train.sbatch" if can_submit else "not on a Slurm cluster"
        yield Finding("slurm", "ok", text)
        return
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    given = environment.get("SLURM_GPUS_ON_NODE")
    text = f"job {job}, {nodes} node{'s' * (nodes != '1')}, {given or 'no'} GPUs on this one"
    if given is None:
        yield Finding("slurm", "warn", text, "ask for GPUs: sbatch --gpus-per-node N")
    elif given.isdecimal() and int(given) > devices:
        remedy = "check the torch build and CUDA_VISIBLE_DEVICES; inside srun, a task may be bound to fewer GPUs"
        yield Finding("slurm", "warn", f"{text}, but torch finds {devices}", remedy)
    else:
        yield Finding("slurm", "ok", text)
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    if restarts != "0":
        yield Finding("requeued", "ok", f"{restarts} times so far")


def check_launchers() -> Iterator[Finding]:
    """Report each launcher whose command can be composed, the C++ compiler, Slurm and SkyPilot."""
    devices = accelerators()
    compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    for name in launchers():
        yield _launcher(name, devices, compiler)
    if compiler is None:
        what = "none found; train.compile_layers on a CPU and the offload launchers need one"
        yield Finding("C++ compiler", "warn", what, "install g++")
    else:
        yield Finding("C++ compiler", "ok", compiler)
    for command, use in (("sbatch", "launch/slurm/*.sbatch"), ("sky", "launch/sky/train.yaml")):
        found = shutil.which(command)
        yield Finding(command, "ok", found or f"not found; only {use} needs it")


def _launcher(name: str, devices: int, compiler: str | None) -> Finding:
    try:
        launch_command(name, [], processes=None if devices else 1)
    except UserError as error:
        return Finding(name, "warn", error.message, error.remedy or "")
    if name.endswith("-offload") and compiler is None:
        return Finding(name, "warn", "its optimizer on the CPU needs a C++ compiler", "install g++")
    where = f"on {devices} accelerator{'s' * (devices != 1)}" if devices else "on the CPU, with --processes N"
    return Finding(name, "ok", f"d2e train RECIPE --launch {name}, {where}")

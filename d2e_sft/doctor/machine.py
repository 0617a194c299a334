"""Checks of `d2e doctor` that need torch: devices, precisions (tested by multiplying), attention, launchers, Slurm."""

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from d2e_sft.doctor.run import Finding, Status, installed_version
from d2e_sft.model.attention.cuda import AMPERE, cuda_kernel_takes
from d2e_sft.model.attention.registry import BY_BRANCH, DENSE
from d2e_sft.model.attention.segments import LayerOptions
from d2e_sft.model.device import automatic_dtype, timed, usable_device
from d2e_sft.train.launch import accelerators, launch_command, launchers
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import usable_cores

# Allowed error of a product of random matrices, relative to its norm; half precision rounds each factor.
_TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3}


def check_devices() -> Iterator[Finding]:
    """Report each accelerator with its memory, and the CPU with cores and threads."""
    if torch.cuda.is_available():
        yield from (_cuda(index) for index in range(torch.cuda.device_count()))
    elif torch.accelerator.is_available():
        yield Finding("accelerator", "ok", str(torch.accelerator.current_accelerator()))
    elif Path("/proc/driver/nvidia/version").exists():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        yield Finding(
            "accelerator",
            "warn",
            f"NVIDIA's driver is loaded, but torch {torch.__version__} ({build}) finds no device",
            "install the torch build for your driver (https://pytorch.org/get-started), and look at "
            f"CUDA_VISIBLE_DEVICES (now {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})",
        )
    else:
        remedy = "small models train on the CPU; for others use a machine with a GPU"
        yield Finding("accelerator", "warn", "none", remedy)
    yield _cpu()


def _cuda(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    text = f"{properties.name}, {total / 2**30:.0f} GiB, compute capability {properties.major}.{properties.minor}"
    if free < total / 2:
        text += f"; only {free / 2**30:.1f} GiB free"
        return Finding(f"cuda:{index}", "warn", text, "see what uses it: nvidia-smi")
    return Finding(f"cuda:{index}", "ok", text)


def _cpu() -> Finding:
    info = Path("/proc/cpuinfo")  # on Linux
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    cores, threads = usable_cores(), torch.get_num_threads()
    text = (
        f"{name}, {cores} of {os.cpu_count()} cores usable; torch computes with {threads} threads and "
        f"{torch.backends.cpu.get_cpu_capability()} instructions"
    )
    if threads > cores:
        return Finding("cpu", "warn", text, f"export OMP_NUM_THREADS={cores}")
    return Finding("cpu", "ok", text)


def check_precisions() -> Iterator[Finding]:
    """Compare bfloat16 and float16 on the device of training with float32 on the CPU."""
    device, generator = usable_device(), torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    for name, tolerance in _TOLERANCE.items():
        dtype, instead, text = getattr(torch, name), "use train.bf16=null or float32", f"works on {device.type}"
        try:
            product = (left.to(device, dtype) @ right.to(device, dtype)).float().cpu()
            if device.type == "cpu":  # on a GPU so small a product measures the kernel launch
                times = _seconds_of_product(torch.float32) / _seconds_of_product(dtype)
                text += f", {times:.2g} × as fast as float32"
        except RuntimeError as failure:  # no kernel on this device
            yield Finding(name, "warn", f"not on {device.type} ({str(failure).splitlines()[0]})", instead)
            continue
        error = float((product - left @ right).norm() / (left @ right).norm())
        if error > tolerance:
            yield Finding(name, "warn", f"wrong by {error:.0e} on {device.type}", instead)
        elif name == "float16":
            yield Finding(name, "ok", f"{text}; train.fp16=true uses float16" if device.type == "cuda" else text)
        elif device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            yield Finding(name, "warn", "emulated by this GPU, so training rejects it", "use float16 or float32")
        else:
            yield Finding(name, "ok", f"{text}; train.bf16=null uses {automatic_dtype()}")


def check_attentions() -> Iterator[Finding]:
    """Report the attention for packed rows, by which kernel, and transformers' implementations."""
    from transformers.utils import is_torch_flex_attn_available

    cuda = torch.cuda.is_available()
    status, kernel = _kernel(cuda)
    yield Finding("packed rows", status, f"{BY_BRANCH}, {kernel}; {', '.join(DENSE)} use a dense mask")
    optional = {
        "flash_attention_2": cuda and installed_version("flash-attn") is not None,
        "flex_attention": is_torch_flex_attn_available(),
    }
    names = [*DENSE, *(f"{name} (not for packed rows)" for name, installed in optional.items() if installed)]
    yield Finding("transformers", "ok", ", ".join(names))


def _kernel(cuda: bool) -> tuple[Status, str]:
    if not cuda:
        return "ok", "by the CPU's flash kernel"
    if torch.cuda.get_device_capability() < AMPERE:
        return "ok", "segment by segment: the flash kernel needs a card of Ampere or newer"
    rows = torch.zeros(1, 1, 1, 64, dtype=torch.float16, device="cuda")
    if cuda_kernel_takes(rows, rows, LayerOptions(1.0)):
        return "ok", "by CUDA's flash kernel in 16 bits, segment by segment in float32"
    return "warn", "segment by segment, which is slow: the flash kernel does not run here, or is wrong"


def _seconds_of_product(dtype: torch.dtype) -> float:
    """Time the product of a small model's layer on 32 tokens on the CPU; the fastest of four."""
    left, right = torch.ones(32, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
    return min(timed(lambda: torch.mm(left, right), left.device)[1] for _ in range(4))


_SHOWN = (
    "D2E_CACHE", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "WANDB_MODE",
    "ACCELERATE_MIXED_PRECISION", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG",
)  # fmt: skip


def check_environment() -> Iterator[Finding]:
    """Report Slurm, and the variables that are set."""
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield from slurm(os.environ, devices, can_submit=shutil.which("sbatch") is not None)
    variables = [f"{name}={os.environ[name]}" for name in _SHOWN if name in os.environ]
    yield Finding("variables", "ok", ", ".join(variables) or "none set")


def slurm(environment: Mapping[str, str], devices: int, *, can_submit: bool) -> Iterator[Finding]:
    """Report whether this is a Slurm login node (`sbatch` is found) or job, and whether torch finds the job's GPUs."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        text = "a login node: submit with sbatch launch/slurm/train.sbatch" if can_submit else "not on a Slurm cluster"
        yield Finding("slurm", "ok", text)
        return
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    gpus = environment.get("SLURM_GPUS_ON_NODE")
    text = f"job {job}, {nodes} node{'s' * (nodes != '1')}, {gpus or 'no'} GPUs on this one"
    if gpus is None:
        yield Finding("slurm", "warn", text, "ask for GPUs: sbatch --gpus-per-node N")
    elif gpus.isdecimal() and int(gpus) > devices:
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
    compiler = next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)
    where = f"on {devices} accelerator{'s' * (devices != 1)}" if devices else "on the CPU, with --processes N"
    for name in launchers():
        try:
            launch_command(name, [], processes=None if devices else 1)
        except UserError as error:
            yield Finding(name, "warn", error.message, error.remedy or "")
            continue
        if name.endswith("-offload") and compiler is None:
            yield Finding(name, "warn", "its optimizer on the CPU needs a C++ compiler", "install g++")
        else:
            yield Finding(name, "ok", f"d2e train RECIPE --launch {name}, {where}")
    if compiler is None:
        problem = "none found; train.compile_layers on a CPU and the offload launchers need one"
        yield Finding("C++ compiler", "warn", problem, "install g++")
    else:
        yield Finding("C++ compiler", "ok", compiler)
    for command, use in (("sbatch", "launch/slurm/*.sbatch"), ("sky", "launch/sky/train.yaml")):
        yield Finding(command, "ok", shutil.which(command) or f"not found; only {use} needs it")

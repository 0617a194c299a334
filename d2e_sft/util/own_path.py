"""A user's own `eval.py` or `data_builders/` beside a run does not stand in for a package of this installation.

`python -m` puts the working folder before everything that is installed. Processes that d2e starts are told not to
(PYTHONSAFEPATH); the process that a user started leaves the folder out as soon as it can, and takes its three packages
from where `d2e_sft` lies, whatever of their name comes first on the path.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from d2e_sft.util.errors import UserError

ROOT = Path(__file__).resolve().parents[2]  # the folder of the three packages
_PACKAGES = ("data_builders", "eval")


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables for a Python process that is to find this installation and not what lies in the working folder.

    Args:
        environment: what to start from; None means this process's.
    """
    made = dict(os.environ if environment is None else environment)
    made["PYTHONSAFEPATH"] = "1"
    if str(ROOT) not in [*site.getsitepackages(), site.getusersitepackages()]:
        # A clone that is not installed may have been found in the working folder.
        folders = [folder for folder in made.get("PYTHONPATH", "").split(os.pathsep) if folder]
        if str(ROOT) not in folders:
            made["PYTHONPATH"] = os.pathsep.join([*folders, str(ROOT)])
    return made


def leave_working_folder() -> None:
    """Move the folder that `python -m` put first to the end of the path, for a module run in this way."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", str(Path.cwd())):
        sys.path.append(sys.path.pop(0))


def claim_packages() -> None:
    """Import `data_builders` and `eval` of this installation, so that their names mean nothing else from here on.

    Raises:
        UserError: another module of one of the names has been imported already; says from which file.
    """
    for name in _PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is None:
            _import(name)
            continue
        folders = list(getattr(loaded, "__path__", []))
        if not folders or Path(folders[0]).resolve() != ROOT / name:
            where = getattr(loaded, "__file__", None) or ", ".join(folders) or "a module without a file"
            raise UserError(
                f"the name {name!r} is taken by {where}; expected the package {ROOT / name}, which is part of d2e-sft",
                remedy=f"rename that file, or run d2e in a process that has not imported it (import {name})",
            )


def _import(name: str) -> None:
    spec = PathFinder.find_spec(name, [str(ROOT)])
    if spec is None or spec.loader is None:
        raise UserError(
            f"the package {name!r} is missing from {ROOT}; expected it beside d2e_sft", "reinstall d2e-sft whole"
        )
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)

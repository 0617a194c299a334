"""Where things are: the cache, the bundled recipes and launch files, and this installation's packages.

`python -m` puts the working folder before everything that is installed, so a user's own `eval.py` or `data_builders/`
could replace a package of ours. Processes that d2e starts ignore the working folder (PYTHONSAFEPATH). The process that
a user started moves it to the end of the path, and imports its packages from the folder of `d2e_sft`.
"""

import os
import site
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from d2e_sft.util.errors import UserError

ROOT = Path(__file__).resolve().parents[2]  # the folder of the three packages
_OTHER_PACKAGES = ("data_builders", "eval")


def cache_dir() -> Path:
    """`$D2E_CACHE` or `~/.cache/d2e-sft`: downloads and the converted embedded model."""
    return Path(os.environ.get("D2E_CACHE") or Path.home() / ".cache" / "d2e-sft")


def refuse_no_place(folder: Path, label: str, content: str, remedy: str) -> None:
    """Raise UserError, before any work, for a folder that cannot be made or written; messages begin with `label`."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists() or path.is_symlink())
    if not nearest.exists():
        raise UserError(f"{label}: {nearest} is a link to nothing; expected a folder for {content}", remedy)
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written" if nearest.is_dir() else "is a file"
        raise UserError(f"{label}: {nearest} {problem}; expected a folder for {content}", remedy)


def bundled(folder: str) -> Path:
    """The folder `recipes` or `launch`: inside the package in a wheel, at the top level in a clone."""
    in_wheel = ROOT / "d2e_sft" / "bundled" / folder
    return in_wheel if in_wheel.is_dir() else ROOT / folder


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables (None: from this process's) for a Python process that ignores the working folder."""
    variables = dict(os.environ if environment is None else environment)
    variables["PYTHONSAFEPATH"] = "1"
    if str(ROOT) not in [*site.getsitepackages(), site.getusersitepackages()]:
        # A clone that is not installed may have been found through the working folder.
        folders = [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]
        if str(ROOT) not in folders:
            variables["PYTHONPATH"] = os.pathsep.join([*folders, str(ROOT)])
    return variables


def leave_working_folder() -> None:
    """Move the folder that `python -m` put first to the end of the path."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", str(Path.cwd())):
        sys.path.append(sys.path.pop(0))


def claim_packages() -> None:
    """Import this installation's `data_builders` and `eval`, so that their names cannot mean anything else.

    Raises UserError if another module with one of the names is already imported, or a package is missing.
    """
    for name in _OTHER_PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is None:
            spec = PathFinder.find_spec(name, [str(ROOT)])
            if spec is None or spec.loader is None:
                raise UserError(f"the package {name!r} is missing; expected it in {ROOT}", "reinstall d2e-sft")
            sys.modules[name] = loaded = module_from_spec(spec)
            spec.loader.exec_module(loaded)
        folders = list(getattr(loaded, "__path__", []))
        if not folders or Path(folders[0]).resolve() != ROOT / name:
            place = getattr(loaded, "__file__", None) or ", ".join(folders) or "a module without a file"
            raise UserError(
                f"the name {name!r} is taken by {place}; expected the package {ROOT / name}, which is part of d2e-sft",
                remedy=f"rename that file, or run d2e in a process that has not imported it (import {name})",
            )

"""Where things lie: the cache, and the recipes and launch files that travel with the package.

In a clone `recipes/` and `launch/` are top-level folders; in a wheel they are inside the package. A path that
a user types is looked up on disk first and among the bundled files second, so the README's commands work in both.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def cache_dir() -> Path:
    """`$D2E_CACHE`, else `~/.cache/d2e-sft`: downloads and the embedded model in its converted form."""
    return Path(os.environ.get("D2E_CACHE") or Path.home() / ".cache" / "d2e-sft")


def bundled(folder: str) -> Path:
    """The folder `recipes` or `launch` of this installation."""
    in_wheel = _PACKAGE / "bundled" / folder
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / folder


def find_recipe(path: str | Path) -> Path | None:
    """`path` itself if it is a file, else the bundled recipe of that name, else None."""
    given = Path(path)
    if given.is_file():
        return given
    parts = given.parts[1:] if given.parts[:1] == ("recipes",) else given.parts
    candidate = bundled("recipes").joinpath(*parts)
    return candidate if candidate.is_file() and not given.is_absolute() else None


def bundled_recipes() -> list[str]:
    """Names of the bundled recipes, as they can be typed after `d2e train`."""
    root = bundled("recipes")
    return sorted(f"recipes/{file.relative_to(root).as_posix()}" for file in root.rglob("*.yaml"))

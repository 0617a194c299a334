"""Where things lie: the cache, and the recipes and launch files that travel with the package.

In a clone `recipes/` and `launch/` are top-level folders; in a wheel they are inside the package. A path that
a user types is looked up on disk first and among the bundled files second, so the README's commands work in both.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_PARTS = "recipes/shared/"


def cache_dir() -> Path:
    """`$D2E_CACHE`, else `~/.cache/d2e-sft`: downloads and the embedded model in its converted form."""
    return Path(os.environ.get("D2E_CACHE") or Path.home() / ".cache" / "d2e-sft")


def bundled(folder: str) -> Path:
    """The folder `recipes` or `launch` of this installation."""
    in_wheel = _PACKAGE / "bundled" / folder
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / folder


def find_recipe(path: str | Path, *, bundled_first: bool = False) -> Path | None:
    """`path` itself if it is a file, else the bundled recipe of that name, else None.

    Args:
        bundled_first: the bundled recipe wins, as where one bundled recipe extends another.
    """
    given = Path(path)
    parts = given.parts[1:] if given.parts[:1] == ("recipes",) else given.parts
    inside = bundled("recipes").joinpath(*parts)
    candidates = [given] if given.is_absolute() else [inside, given] if bundled_first else [given, inside]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def bundled_recipes() -> list[str]:
    """Names of the bundled recipes, as they can be typed after `d2e train`."""
    return [name for name in _bundled_files() if not name.startswith(_PARTS)]


def bundled_parts() -> list[str]:
    """Names of the bundled files that recipes extend and that are none themselves."""
    return [name for name in _bundled_files() if name.startswith(_PARTS)]


def is_bundled_recipe(path: Path) -> bool:
    """Whether a file is one of this installation's recipes, or a part of them."""
    return path.resolve().is_relative_to(bundled("recipes").resolve())


def _bundled_files() -> list[str]:
    root = bundled("recipes")
    return sorted(f"recipes/{file.relative_to(root).as_posix()}" for file in root.rglob("*.yaml"))

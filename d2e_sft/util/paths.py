"""Where things lie: the cache, and the recipes and launch files that travel with the package.

In a clone `recipes/` and `launch/` are top-level folders; in a wheel they are inside the package.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def cache_dir() -> Path:
    """`$D2E_CACHE`, else `~/.cache/d2e-sft`: downloads and the embedded model in its converted form."""
    return Path(os.environ.get("D2E_CACHE") or Path.home() / ".cache" / "d2e-sft")


def bundled(folder: str) -> Path:
    """The folder `recipes` or `launch` of this installation."""
    in_wheel = _PACKAGE / "bundled" / folder
    return in_wheel if in_wheel.is_dir() else _PACKAGE.parent / folder

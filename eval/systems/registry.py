"""The systems by name; a system is imported when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.systems.system import System

# name → (module, attribute)
_SYSTEMS: dict[str, tuple[str, str]] = {
    "boxes": ("eval.systems.boxes.system", "BOXES"),
    "crepe": ("eval.systems.crepe.system", "CREPE"),
    "openpi2": ("eval.systems.openpi2.system", "OPENPI2"),
    "wiqa": ("eval.systems.wiqa.system", "WIQA"),
}
SYSTEM_NAMES = tuple(_SYSTEMS)
ROWS = "rows"  # any benchmark of rows: has a scorer only


def load_system(name: str) -> System[Any, Any]:
    """Return the system with this name, which is one of `SYSTEM_NAMES` or `rows`."""
    module, attribute = ("eval.systems.rows", "ROWS_SYSTEM") if name == ROWS else _SYSTEMS[name]
    system: System[Any, Any] = getattr(importlib.import_module(module), attribute)
    return system

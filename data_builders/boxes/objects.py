"""The objects of the Boxes world, from `objects.yaml`: common ones, and rare ones that correspond to them."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.files import load_package_yaml

_LISTS = load_package_yaml(Path(__file__).with_suffix(".yaml"))
OBJECTS: tuple[str, ...] = tuple(_LISTS["common"].split())
RARE_OBJECTS: tuple[str, ...] = tuple(_LISTS["rare"].split())

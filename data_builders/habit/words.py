"""The vocabulary of the habit task's stories, from `words.yaml`."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.files import load_package_yaml

_WORDS = load_package_yaml(Path(__file__).with_suffix(".yaml"))
THINGS, PLACES, PEOPLE = (tuple(_WORDS[name].split()) for name in ("things", "places", "people"))
KNOWN_HABITS: dict[str, str] = _WORDS["known_habits"]

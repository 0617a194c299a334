"""The list of licences, and the pins with hashes, are of the packages that are asked for."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.docs.test_pictures import script

ROOT = Path(__file__).resolve().parents[2]


def pins(file: str) -> dict[str, str]:
    """Package → version of a file of pins; what a marker leaves out here is in it, too."""
    text = (ROOT / file).read_text(encoding="utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_package_is_listed_with_its_licence() -> None:
    licences, pinned = script("licences"), pins("launch/constraints.txt")
    rows = [line.strip("| ").split(" | ") for line in licences.PAGE.read_text("utf-8").splitlines() if " | " in line]
    listed = {name: row[0] for row in rows if len(row) == 3 for name in row[2].split(", ")}
    installed = licences.packages()
    same = [name for name in installed if pinned.get(name) == metadata.version(name).partition("+")[0]]
    assert len(same) > 40, "the versions here are others, so what they bring may be other packages"
    wrong = {name: licences.licence_of(name) for name in same if listed.get(name) != licences.licence_of(name)}
    assert wrong == {}, "run make licences"


def test_the_hashes_are_of_the_pins_and_of_all_that_is_needed() -> None:
    licences, pinned = script("licences"), pins("launch/constraints.txt")
    core, dev = (pins(f".ci/hashes/{name}.txt") for name in ("core", "dev"))
    assert core.items() <= dev.items()
    for name in pinned.keys() & dev.keys():
        assert dev[name] == pinned[name], "run make hashes"
    installed = licences.packages()
    needed = {name for name, parts in installed.items() if {"core", "builtin"} & {*parts}}
    assert needed <= core.keys(), "run make hashes"
    assert installed.keys() <= dev.keys(), "run make hashes"
    for name in ("core", "dev"):
        text = (ROOT / f".ci/hashes/{name}.txt").read_text(encoding="utf-8")
        unhashed = re.findall(r"^[^ #\n].*[^\\]\n(?! )", text, flags=re.MULTILINE)
        assert unhashed == []

"""Pictures, tables, lists of licences and pins that scripts make are current."""

from __future__ import annotations

import importlib.util
import json
import re
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

from d2e_sft.bench.harness import Report
from d2e_sft.bench.table import table_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["architecture_picture", "packed_row_picture"])
def test_a_picture_is_what_its_script_draws_now(name: str) -> None:
    module = script(name)
    assert module.PICTURE.read_text(encoding="utf-8") == module.draw(), f"run python docs/{name}.py"


@pytest.mark.parametrize("name", ["front", "habit-ways", "habit-mechanism", "choosing-ways", "choosing-alpha"])
def test_the_pictures_of_the_habit_studies_are_of_the_rows_that_are_kept(name: str) -> None:
    figure = script("habit_pictures").FIGURES[name]()
    drawn = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    labels = [text.get_text() for panel in figure.axes for text in (*panel.get_yticklabels(), panel.title)]
    labels += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    told = [line for label in labels for line in label.split("\n") if any(c.isalpha() for c in line)]
    assert len(told) >= 3
    for line in told:
        assert line in drawn, f"{line!r} is not in {name}.svg: run python docs/habit_pictures.py"


def test_the_table_of_the_readme_is_of_the_rows_that_are_kept() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = script("habit_pictures").front_rows()
    assert len(rows) == 3
    assert [row for row in rows if f"| {row} |" not in readme] == []


def test_the_page_has_the_table_of_the_figures_that_are_kept() -> None:
    writer = script("performance_table")
    report = Report(**json.loads(writer.RESULTS.read_text("utf-8")))
    assert table_of(report).markdown() in writer.PAGE.read_text("utf-8")


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

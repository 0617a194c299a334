"""Pictures and tables of the docs that scripts make show the code and the results as they are."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from d2e_sft.bench.harness import Report
from d2e_sft.bench.table import table_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


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
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    rows = script("habit_pictures").front_rows()
    assert len(rows) == 3
    assert [row for row in rows if f"| {row} |" not in readme] == []


def test_the_page_has_the_table_of_the_figures_that_are_kept() -> None:
    writer = script("performance_table")
    report = Report(**json.loads(writer.RESULTS.read_text("utf-8")))
    assert table_of(report).markdown() in writer.PAGE.read_text("utf-8")

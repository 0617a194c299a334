"""The pictures in docs/images that are drawn from the code show the code as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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


def test_rooms_that_import_each_other_have_no_floors() -> None:
    picture = script("architecture_picture")
    assert picture.floors_of({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"c": 0, "b": 1, "a": 2}
    assert picture.without_implied({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    with pytest.raises(ValueError, match="import each other"):
        picture.floors_of({"a": {"b"}, "b": {"a"}, "c": set()})

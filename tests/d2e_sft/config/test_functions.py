"""A function of the user's own: found in the working folder, and told what is wrong with its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from d2e_sft.config.functions import load_function


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_it_is_found_in_the_working_folder_and_in_packages_there(folder: Path) -> None:
    (folder / "mine_one.py").write_text("def twice(x):\n    return 2 * x\n", encoding="utf-8")
    (folder / "mine_two").mkdir()
    (folder / "mine_two" / "part.py").write_text("def thrice(x):\n    return 3 * x\n", encoding="utf-8")
    assert load_function("mine_one:twice", "decoder")(4) == 8
    assert load_function("mine_two.part:thrice", "decoder")(4) == 12


def test_an_installed_module_comes_before_one_of_the_same_name_here(folder: Path) -> None:
    (folder / "fractions.py").write_text("gcd = None\n", encoding="utf-8")
    assert load_function("fractions:Fraction", "decoder")(1, 2) == 0.5

"""What the files around the code say of it: paths, targets and extras that they name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click

from d2e_sft.cli import d2e

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _texts() -> dict[str, str]:
    names = ["CONTRIBUTING.md", "Dockerfile", *(str(file.relative_to(ROOT)) for file in WORKFLOWS)]
    return {name: (ROOT / name).read_text(encoding="utf-8") for name in names}


def test_paths_of_the_contributors_page_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w./]+/[\w./]*|[\w]+\.py)`", text) + re.findall(r"\]\(([\w./]+)(?:#[\w-]+)?\)", text)
    assert len(paths) > 8
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = [
        target
        for text in _texts().values()
        for words in re.findall(r"(?:\$|run:) make ([a-z -]+?)(?: {2,}|\n)", text)
        for target in words.split()
    ]
    assert "docs" in named
    assert set(named) <= targets


def test_extras_that_are_named_exist() -> None:
    named = [
        extra
        for text in _texts().values()
        for extras in re.findall(r"\.\[([\w,-]+)\]", text)
        for extra in extras.split(",")
    ]
    assert {"builtin", "dev", "train-gpu"} <= set(named) <= set(PROJECT["optional-dependencies"])


def test_the_readme_names_files_verbs_and_pictures_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
    assert [path for path in linked if not (ROOT / path).exists()] == []
    assert len(linked) > 15
    verbs = set(re.findall(r"(?:`|^\$ |then )d2e ([a-z][\w-]*)", text, flags=re.MULTILINE))
    assert len(verbs) >= 5
    assert verbs <= set(d2e.list_commands(click.Context(d2e)))

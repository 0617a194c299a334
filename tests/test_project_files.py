"""What the files around the code say of it: paths, targets and extras that they name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

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
    missing = [path for path in paths if not (ROOT / path).exists() and path != "ecare.py"]
    assert missing == []
    assert (ROOT / "data_builders/sources/ecare.py").is_file()


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


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_are_yaml_with_jobs(file: Path) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert all(job["runs-on"] and job["steps"] for job in content["jobs"].values())


def test_the_citation_names_what_is_cited() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["title"] == PROJECT["name"]
    assert cited["license"] == PROJECT["license"]
    assert len(cited["references"][0]["authors"]) == 8

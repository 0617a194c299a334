"""What `pip install d2e-sft` brings is what its modules import: no less, and nothing that only one verb needs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("d2e_sft", "data_builders", "eval")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Built on classes of another library: only verbs that need the library import them.
OF_AN_EXTRA = ("d2e_sft.server.app", "d2e_sft.vllm", "eval.lm_eval")

# In a process that finds no library but those allowed, and is asked for every module.
_IMPORT_ALL = """
import importlib, json, sys
from importlib.machinery import PathFinder

allowed, modules = json.load(sys.stdin)

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return super().find_spec(name, path, target) if name.split(".")[0] in allowed or name[0] == "_" else None

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
failed = {}
for module in modules:
    try:
        importlib.import_module(module)
    except ImportError as error:
        failed[module] = str(error)
print(json.dumps(failed))
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that these and what they ask for are, by canonical name."""
    found: set[tuple[str, str]] = set()
    todo = [Requirement(line) for line in requirements]
    while todo:
        asked = todo.pop()
        for extra in ("", *asked.extras):
            name = canonicalize_name(asked.name)
            if (name, extra) in found:
                continue
            found.add((name, extra))
            for line in metadata.requires(name) or []:
                more = Requirement(line)
                if more.marker is None or more.marker.evaluate({"extra": extra}):
                    todo.append(more)
    return {name for name, _ in found}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imported(file: Path) -> set[str]:
    """Top-level names that a file imports anywhere, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_every_module_imports_with_the_core_dependencies_alone() -> None:
    core = closure(PROJECT["dependencies"])
    owners = metadata.packages_distributions()
    of_core = {name for name, of in owners.items() if core & {canonicalize_name(one) for one in of}}
    allowed = [*of_core, *PACKAGES, *sys.stdlib_module_names]
    wanted = [
        name
        for name, _ in modules()
        if not name.endswith("__main__") and "custom_generate" not in name and not name.startswith(OF_AN_EXTRA)
    ]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL],
        input=json.dumps([allowed, wanted]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(wanted) > 200
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_every_library_that_is_imported_is_asked_for_by_the_project_or_an_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name, of in extras.items() if name != "dev" for line in of)]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    owners = metadata.packages_distributions()
    # Part of what these offer.
    of_another = {
        "markupsafe": "jinja2",
        "pydantic_core": "pydantic",
        "tokenizers": "transformers",
    }
    unasked: dict[str, str] = {}
    for module, file in modules():
        for name in imported(file) - {*PACKAGES, *sys.stdlib_module_names, "__future__"}:
            of = owners.get(name, [name])  # one that is not installed here has its module's name
            if not {canonicalize_name(one) for one in [*of, of_another.get(name, name)]} & declared:
                unasked.setdefault(name, module)
    assert unasked == {}

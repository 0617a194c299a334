"""The shape of the repository: small folders, short functions, no tiny modules, tests that mirror the code."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("d2e_sft", "data_builders", "eval")
MOST_MODULES = 14  # in a folder; data_builders/sources has one module a dataset
LEAST_LINES = 40  # of a module that one other alone imports
LONGEST_FUNCTION = 40


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring, whose arguments and errors are no complexity."""
    first = node.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def importers() -> dict[str, set[str]]:
    """Which modules import each module."""
    found = defaultdict(set)
    for name, file in modules().items():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    found[target].add(name)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(name)
    return found


def holds_logic(file: Path) -> bool:
    return file.name not in ("__init__.py", "__main__.py") and any(functions(file))


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(file.parent.relative_to(ROOT) for file in modules().values() if file.name != "__init__.py")
    full = {str(folder): count for folder, count in counts.items() if count > MOST_MODULES}
    assert full.keys() <= {"data_builders/sources"}, full


def test_a_short_module_is_not_there_for_one_other_module() -> None:
    imported = importers()
    tiny = [
        f"{name} ← {next(iter(imported[name]))}"
        for name, file in modules().items()
        if holds_logic(file) and len(imported[name]) == 1
        if len(file.read_text(encoding="utf-8").splitlines()) < LEAST_LINES
        if file.parent.name != "commands"  # a verb has a file of its own, however short
    ]
    assert not tiny


def test_ninety_five_functions_in_a_hundred_are_short() -> None:
    lengths = [length(node) for file in modules().values() for node in functions(file)]
    share = sum(lines < LONGEST_FUNCTION for lines in lengths) / len(lengths)
    assert share >= 0.95, f"{share:.1%} of {len(lengths)} functions have fewer than {LONGEST_FUNCTION} lines"


def test_three_modules_in_four_have_their_tests_in_the_same_place() -> None:
    wanted = {
        file: ROOT / "tests" / file.parent.relative_to(ROOT) / f"test_{file.name}"
        for file in modules().values()
        if holds_logic(file)
    }
    missing = [str(file.relative_to(ROOT)) for file, test in wanted.items() if not test.is_file()]
    share = 1 - len(missing) / len(wanted)
    assert share >= 0.75, f"{share:.1%} of {len(wanted)} modules; without: {', '.join(missing)}"

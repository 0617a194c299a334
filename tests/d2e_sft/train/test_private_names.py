"""Private names and internal modules of libraries are those in the tables of docs/explanation/architecture.md."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from transformers import Trainer, TrainingArguments

from d2e_sft.train import config, trainer

ROOT = Path(__file__).resolve().parents[3]
ARCHITECTURE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("d2e_sft", "data_builders", "eval")
UNDERSCORED = {"_asdict", "_exit", "_fields", "_replace"}  # public, in spite of the underscore
PUBLIC = {"vllm", "vllm.exceptions", "vllm.outputs", "vllm.sampling_params"}
SUBCLASSES = ((trainer, Trainer), (config, TrainingArguments))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", "_d2e")) and name not in UNDERSCORED


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _used(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)):
                yield str(name.value)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(PACKAGES):
            yield from (part for part in node.module.split(".") if _is_private(part))
            yield from (alias.name for alias in node.names if _is_private(alias.name))


def found() -> set[tuple[str, str]]:
    """(name, file) of private names that no module of ours defines, or that a subclass of ours overrides."""
    trees = {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    ours = {name for tree in trees.values() for name in _defined(tree)}
    names = {(name, file) for file, tree in trees.items() for name in _used(tree) if name not in ours}
    for module, base in SUBCLASSES:
        file = Path(inspect.getfile(module)).relative_to(ROOT).as_posix()
        theirs = set(re.findall(r"(?:self\.|def |^    )(_[a-z]\w*)", inspect.getsource(base), re.MULTILINE))
        names |= {(name, file) for name in _defined(trees[file]) if name in theirs}
    return names


def test_the_table_lists_every_private_name_of_a_library() -> None:
    rows = re.findall(r"^\| `(_\w+)` \| [^|]+ \| ([^|]+) \|", ARCHITECTURE, re.MULTILINE)
    listed = {(name, file) for name, files in rows for file in re.findall(r"`([\w/]+\.py)`", files)}
    assert found() == listed


def test_the_table_lists_every_internal_module_of_vllm_that_is_imported() -> None:
    imported = {
        node.module
        for path in (ROOT / "d2e_sft").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm"
    }
    section = ARCHITECTURE.partition("## Internal modules of vLLM")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)
    assert {f"vllm.{module}" for module in listed} == imported - PUBLIC

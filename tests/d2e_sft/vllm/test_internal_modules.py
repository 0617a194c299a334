"""Modules of vLLM that are not public are few, and all of them are listed in the documentation."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = {"vllm", "vllm.exceptions", "vllm.outputs", "vllm.sampling_params"}


def test_the_table_lists_every_internal_module_that_is_imported() -> None:
    imported = {
        node.module
        for path in (ROOT / "d2e_sft").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm"
    }
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Internal modules of vLLM")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w.]+)` \|", section, flags=re.MULTILINE)
    assert {f"vllm.{module}" for module in listed} == imported - PUBLIC

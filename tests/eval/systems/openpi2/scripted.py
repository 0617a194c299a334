"""A model whose answers are given, and the benchmark run with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.run.task import Conversation
from eval.systems.openpi2.system import OPENPI2
from eval.systems.system import SystemCall, SystemResult, parse_options
from tests.factories import ScriptedAsker

Reply = Callable[[str, Conversation], str]


def run(data: Path, reply: Reply, *given: str, max_samples: int | None = None) -> tuple[SystemResult, ScriptedAsker]:
    asker: Any = ScriptedAsker(reply)
    options = parse_options(OPENPI2.options, given, "openpi2")
    return OPENPI2.run(SystemCall(data, options, max_samples, 0), asker), asker


def rescored(tmp_path: Path, result: SystemResult, name: str, gold: Path, task: str) -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(result.files[name])
    options = parse_options(OPENPI2.score_options, [f"task={task}"], "openpi2")
    return OPENPI2.score(path, gold, options).scores

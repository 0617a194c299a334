"""A model whose answers are given, and the benchmark run with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eval.run.task import Conversation
from eval.systems.openpi2.system import OPENPI2
from eval.systems.system import SystemCall, SystemResult, parse_options

Reply = Callable[[str, Conversation], str]


@dataclass
class Scripted:
    """A model whose answers are given by pass and conversation; remembers what it was asked."""

    reply: Reply
    model: str = "scripted"
    config: Any = field(default_factory=lambda: SimpleNamespace(engine="openai"))
    asked: dict[str, Sequence[Conversation]] = field(default_factory=dict)
    sampling: dict[str, tuple[float, int]] = field(default_factory=dict)

    def ask(
        self,
        name: str,
        conversations: Sequence[Conversation],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        assert name not in self.asked, "a pass has a name of its own"
        assert len({chat.id for chat in conversations}) == len(conversations)
        self.asked[name], self.sampling[name] = conversations, (temperature, seed)
        return [self.reply(name, chat) for chat in conversations]


def run(data: Path, reply: Reply, *given: str, max_samples: int | None = None) -> tuple[SystemResult, Scripted]:
    asker: Any = Scripted(reply)
    options = parse_options(OPENPI2.options, given, "openpi2")
    return OPENPI2.run(SystemCall(data, options, max_samples, 0), asker), asker


def rescored(tmp_path: Path, result: SystemResult, name: str, gold: Path, task: str) -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(result.files[name])
    options = parse_options(OPENPI2.score_options, [f"task={task}"], "openpi2")
    return OPENPI2.score(path, gold, options).scores

"""The protocol of an engine: it begins a task, and decodes those of its prompts that it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from eval.run.engines.task import Task
from eval.run.journal_files import Answer

OnAnswers = Callable[[list[Answer]], None]


class Engine(Protocol):
    """Decodes one task after another with the same model."""

    name: str

    def begin(self, task: Task) -> Sequence[int]:
        """Take up a task; what follows is about it.

        Returns:
            a length for each prompt, by which work is shared out; tokens where they are known.

        Raises:
            UserError: prompts exceed the model's context and may not be cut.
        """

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        """Decode the prompts at these places; `on_answers` gets answers as they come, in any order, from any thread.

        Raises:
            UserError: the model cannot be asked, or not any more.
        """

    def environment(self) -> dict[str, Any]:
        """Versions and device, for the record."""

    def counts(self) -> dict[str, int]:
        """What this engine alone has to count, in the task begun last."""

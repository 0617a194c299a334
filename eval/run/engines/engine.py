"""The protocol of an engine, which decodes and scores prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import PromptPair
from eval.run.journal_files import OptionScores
from eval.run.task import Task

# By index of the pair: its output, or the scores of its options. Called as answers come, in any order, by any thread.
OnAnswers = Callable[[Mapping[int, str | OptionScores]], None]


class Engine(Protocol):
    """Decodes and scores prompts with one model, task after task.

    Attributes:
        counts: what this engine counts in a task.
    """

    name: str
    counts: dict[str, int]

    def prepare(self, task: Task) -> Sequence[PromptPair[Any]]:
        """The task's prompts in the form that this engine takes; resets `counts`.

        Raises:
            UserError: prompts exceed the model, or the engine does not support the task.
        """

    def generate(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig, on_answers: OnAnswers) -> None:
        """Decode prompts of the prepared task.

        Raises:
            UserError: the model cannot be asked, or stopped answering.
        """

    def score(self, pairs: Sequence[PromptPair[Any]], decoding: DecodingConfig, on_answers: OnAnswers) -> None:
        """Score the options of prompts of the prepared task; errors as for `generate`."""

    def environment(self) -> dict[str, Any]:
        """Versions and device, for the record."""


def prompt_length(pair: PromptPair[Any]) -> int:
    """Length of a prompt for sharing out work: tokens, or characters of messages and texts."""
    return sum(len(part["content"]) if isinstance(part, dict) else 1 for part in pair.original)

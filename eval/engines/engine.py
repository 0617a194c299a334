"""The protocol of an engine: it is told all samples once, and decodes those that it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from d2e_sft.prompts import SettingPrompts
from d2e_sft.sample import EventSample
from eval.progress import Answer

OnAnswers = Callable[[list[Answer]], None]


@dataclass(frozen=True)
class Task:
    """What is decoded.

    Attributes:
        samples: all samples of the pass, of which some may have been decoded before.
        wording: their prompts.
        alpha: the debias ratio; 0 decodes plainly.
        without_context: the prompts are the imagined ones.
        max_new_tokens: of one answer.
        overlong: `error` or `truncate_context`, for prompts beyond the model's context.
    """

    samples: Sequence[EventSample]
    wording: SettingPrompts
    alpha: float
    without_context: bool
    max_new_tokens: int
    batch_size: int
    overlong: str

    @property
    def groups(self) -> list[tuple[str, str, str]]:
        """Of each sample: those of a dataset, a relation and a format have prompts that begin alike."""
        return [(sample.format, sample.dataset, sample.relation) for sample in self.samples]


class Engine(Protocol):
    """Decodes one task."""

    name: str

    def lengths(self) -> Sequence[int]:
        """A length for each sample, by which work is shared out; tokens where they are known.

        Raises:
            UserError: samples exceed the model's context and may not be cut.
        """

    def decode(self, indices: Sequence[int], on_answers: OnAnswers) -> None:
        """Decode the samples at these places; `on_answers` gets answers as they come, in any order, from any thread.

        Raises:
            UserError: the model cannot be asked, or not any more.
        """

    def environment(self) -> dict[str, Any]:
        """Versions and device, for the record."""

    def counts(self) -> dict[str, int]:
        """What this engine alone has to count, so far."""

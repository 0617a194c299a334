"""The two filters of section 3.1 of the PIPER paper that every training source goes through alike, before the draw.

Context filtering is by length in words; quality filtering is in `quality.judged`. Questions that stand twice in
one dataset are dropped too, since a draw would otherwise train on them twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.raw.filters import FilterLog


@dataclass(frozen=True)
class ContextBounds:
    """How many words (separated by blanks) a training sample's context may have; None is no bound.

    Raises:
        UserError: a negative bound, or a lower one above the upper one.
    """

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("--min-context-words", self.least), ("--max-context-words", self.most)):
            if value is not None and value < 0:
                raise UserError(f"{name}: got {value}; expected a number of words, 0 or more")
        if self.least is not None and self.most is not None and self.least > self.most:
            raise UserError(f"--min-context-words {self.least} is above --max-context-words {self.most}")

    def admit(self, context: str) -> bool:
        words = len(context.split())
        return (self.least is None or words >= self.least) and (self.most is None or words <= self.most)


def within_bounds(samples: list[EventSample], bounds: ContextBounds, log: FilterLog) -> list[EventSample]:
    """The samples whose context fits; logged where there is a bound."""
    if bounds == ContextBounds():
        return samples
    return log.record(
        f"context of {bounds.least or 0} to {bounds.most if bounds.most is not None else 'any number of'} words",
        "a very short context supports no reasoning, a very long one is mostly beside the question",
        samples,
        [sample for sample in samples if bounds.admit(sample.context)],
    )


def without_repeats(samples: list[EventSample], log: FilterLog) -> list[EventSample]:
    """The first of samples that ask the same of the same context, whatever the order of their options."""
    first = {_content(sample): sample for sample in reversed(samples)}
    return log.record(
        "repeated questions",
        "the same context, question and options more than once would be trained on more than once",
        samples,
        [sample for sample in samples if first[_content(sample)] is sample],
    )


def _content(sample: EventSample) -> tuple[str, str, tuple[str, ...]]:
    return sample.context, sample.question, tuple(sorted(sample.options))

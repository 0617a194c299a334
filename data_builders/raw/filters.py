"""The filter log: every row that a builder leaves out is left out by a named filter with counts and a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True)
class FilterStep:
    """One filter's effect on one split; `unit` says what is counted (rows, questions, triplets, …)."""

    name: str
    reason: str
    rows_in: int
    rows_out: int
    unit: str = "rows"


@dataclass
class FilterLog:
    """The filters of one split, in the order in which they were applied."""

    steps: list[FilterStep] = field(default_factory=list)

    def record(self, name: str, reason: str, before: Iterable[Row], after: list[Row], unit: str = "rows") -> list[Row]:
        """Log that `before` became `after`; returns `after`, so that it can wrap the filtering expression."""
        self.steps.append(FilterStep(name, reason, sum(1 for _ in before), len(after), unit))
        return after

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(step) for step in self.steps]

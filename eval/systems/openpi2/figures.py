"""Precision, recall and F1 from counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Figures:
    """Counts of what was predicted and what was to be found; a ratio without anything below is 0.

    The official counts of hits are not always of the same things (see `schemata_scorer`), so recall may exceed 1.
    """

    predicted: int = 0
    predicted_right: int = 0
    gold: int = 0
    gold_found: int = 0

    @property
    def precision(self) -> float:
        return self.predicted_right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.gold_found / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    def as_json(self) -> dict[str, Any]:
        """Ratios and counts."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, **vars(self)}

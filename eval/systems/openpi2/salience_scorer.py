"""How well two judges of salience agree: Pearson's r of each procedure, then the plain mean.

Officially a 0 is appended to both vectors, since r is undefined where one is constant, and a global value outside 0–5
counts as 0 (a local one does not). The corrected score appends nothing, takes any value outside 0–5 to the nearest
bound, and leaves out procedures where r is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from eval.systems.openpi2.salience_gold import EntitySalience, Saliences

Level = Literal["global", "local"]
_HIGHEST = 5


@dataclass(frozen=True)
class Agreement:
    """The mean r; `by_procedure` has None where it is undefined."""

    mean: float | None
    by_procedure: dict[str, float | None]


def agreement(first: Saliences, second: Saliences, level: Level, *, official: bool = True) -> Agreement:
    """The agreement of two judges on the procedures of the second.

    Args:
        level: of the entities of a procedure, or of its entities at each step.
        official: as the official script does, else corrected.
    """
    by_procedure = {
        key: pearson(_vector(first[key], level, official), _vector(entities, level, official))
        for key, entities in second.items()
    }
    defined = [value for value in by_procedure.values() if value is not None]
    # The official mean of a NaN is NaN: one procedure that is undefined leaves the whole so.
    if not defined or (official and len(defined) < len(by_procedure)):
        return Agreement(None, by_procedure)
    return Agreement(sum(defined) / len(defined), by_procedure)


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's r; None where a vector is constant or has one value."""
    x, y = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if x.size < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _vector(entities: Sequence[EntitySalience], level: Level, official: bool) -> list[int]:
    values = [value for entity in entities for value in ((entity.overall,) if level == "global" else entity.steps)]
    if not official:
        return [min(max(value, 0), _HIGHEST) for value in values]
    if level == "global":
        values = [value if 0 <= value <= _HIGHEST else 0 for value in values]
    return [*values, 0]

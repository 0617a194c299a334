"""The two naive baselines of CREPE's Table 2: a random label for each pair, and `equally likely` for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.systems.crepe.labels import EQUALLY, LABELS
from eval.systems.crepe.scorer import macro_f1, macro_f1_of

_AT_ONCE = 200


def baselines(gold: NDArray[np.int64], *, seeds: int, seed: int) -> dict[str, Any]:
    """Scores of both on the gold labels (n,).

    Args:
        seeds: how often chance is drawn; its macro-F1 is the mean, with the standard deviation of a single draw.
        seed: the first.
    """
    majority = np.full_like(gold, EQUALLY)
    chance = _chance(gold, seeds, seed)
    return {
        "chance": {"macro_f1": float(chance.mean()), "deviation": float(chance.std()), "draws": seeds},
        "majority": {"macro_f1": macro_f1(gold, majority)},
    }


def _chance(gold: NDArray[np.int64], seeds: int, seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    parts = []
    for start in range(0, seeds, _AT_ONCE):
        drawn = rng.integers(len(LABELS), size=(min(_AT_ONCE, seeds - start), len(gold)))  # (D, n)
        cells = np.arange(len(drawn))[:, None] * 9 + gold * 3 + drawn
        counts = np.bincount(cells.ravel(), minlength=len(drawn) * 9).reshape(-1, 3, 3)
        parts.append(macro_f1_of(counts))
    return np.concatenate(parts)

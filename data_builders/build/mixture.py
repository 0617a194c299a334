"""Draw an instruction set of a fixed size from several datasets in fixed ratios (PIPER paper, section 3.1).

Candidates are judged in a seeded order until a quota is full, so the judge is asked no more than needed.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.quality.judged import KEPT, JudgedVerdict

HOW_TO_FILL = (
    "add the missing raw files, widen the filters, draw fewer (--size), or pass --allow-shortfall: "
    "missing rows are then drawn from the other datasets in proportion to their ratios, and recorded"
)

JudgeQuality = Callable[[Sequence[EventSample]], Sequence[JudgedVerdict]]


@dataclass
class MixturePool:
    """A dataset's candidates in the order of the draw, those judged good so far, and the `reason` if there are few."""

    name: str
    candidates: list[EventSample]
    reason: str = ""
    kept: list[EventSample] = field(default_factory=list)
    verdicts: Counter[JudgedVerdict] = field(default_factory=Counter)

    @property
    def judged(self) -> int:
        return self.verdicts.total()

    def why_small(self) -> str:
        counts = f"{len(self.candidates):,} candidates after the filters, {len(self.kept):,} of them supported"
        return f"{self.reason}; {counts}" if self.reason and self.candidates else self.reason or counts

    def fill(self, count: int, judge: JudgeQuality) -> None:
        """Judge candidates until `count` are kept or no candidate is left."""
        while len(self.kept) < count and self.judged < len(self.candidates):
            batch = self.candidates[self.judged : self.judged + count - len(self.kept)]
            for sample, verdict in zip(batch, judge(batch), strict=True):
                self.verdicts[verdict] += 1
                if verdict in KEPT:
                    self.kept.append(sample)


def draw(
    pools: Mapping[str, MixturePool],
    ratios: Mapping[str, float],
    size: int,
    judge: JudgeQuality,
    *,
    seed: int,
    allow_shortfall: bool,
) -> tuple[list[EventSample], dict[str, Any]]:
    """Draw `size` samples in the given ratios; returns them in a seeded order, and the entry of the manifest.

    The missing share of a dataset with too few goes to the others in proportion to their ratios. The set is smaller
    than `size` only if all are exhausted.

    Raises:
        UserError: datasets have too few samples and `allow_shortfall` is off; the message lists them.
    """
    targets = allot(size, ratios, {})
    quotas, limits = targets, {}
    while True:
        for name, pool in pools.items():
            pool.fill(quotas[name], judge)
        short = {name: len(pool.kept) for name, pool in pools.items() if len(pool.kept) < quotas[name]}
        if not short:
            break
        if not allow_shortfall:
            rows = [f"{len(short)} of {len(pools)} datasets have too few training samples for {size:,} in the ratios:"]
            for name, count in short.items():
                counts = f"wanted {targets[name]:>5,}, found {count:>5,}, short {targets[name] - count:>5,}"
                rows.append(f"  {name:{max(map(len, short))}}  {counts}: {pools[name].why_small()}")
            raise UserError("\n".join(rows), remedy=HOW_TO_FILL)
        limits.update(short)
        quotas = allot(size, ratios, limits)
    samples = [sample for name, pool in pools.items() for sample in pool.kept[: quotas[name]]]
    if not samples:
        raise UserError("no dataset has a usable training sample; expected at least one", remedy=HOW_TO_FILL)
    random.Random(f"{seed}/mixture").shuffle(samples)
    datasets = dict[str, dict[str, Any]]()
    for name, pool in pools.items():
        more, drawn = "takes part of what others lack", quotas[name]
        datasets[name] = {
            "ratio": ratios[name],
            "asked": targets[name],
            "drawn": drawn,
            "drawn_ratio": round(100 * drawn / len(samples), 2),
            "candidates": len(pool.candidates),
            "judged": pool.judged,
            "verdicts": {verdict.value: count for verdict, count in sorted(pool.verdicts.items())},
            "reason": "" if drawn == targets[name] else more if drawn > targets[name] else pool.why_small(),
        }
    return samples, {"size": len(samples), "rescaled": targets != quotas, "datasets": datasets}


def allot(size: int, ratios: Mapping[str, float], limits: Mapping[str, int]) -> dict[str, int]:
    """Divide `size` in the ratios, none above its limit; what a limit cuts off goes to the others.

    The parts are whole numbers by the largest remainder, so they sum to `size` unless every dataset is at its limit.
    """
    parts: dict[str, int] = {}
    while True:
        open_ratios = {name: ratio for name, ratio in ratios.items() if name not in parts}
        shares = _largest_remainder(size - sum(parts.values()), open_ratios)
        over = {name: limits[name] for name, share in shares.items() if share > limits.get(name, share)}
        if not over:
            return {name: (parts | shares)[name] for name in ratios}
        parts |= over


def _largest_remainder(total: int, ratios: Mapping[str, float]) -> dict[str, int]:
    weight = sum(ratios.values())
    exact = {name: total * ratio / weight for name, ratio in ratios.items()}
    parts = {name: int(share + 1e-9) for name, share in exact.items()}
    by_remainder = sorted(ratios, key=lambda name: parts[name] - exact[name])
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts

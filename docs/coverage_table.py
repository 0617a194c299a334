"""Writes the tables of docs/reference/interval-coverage.md: `python docs/coverage_table.py`, six minutes on one core.

Samples are drawn from known distributions. A row counts how often intervals hold the true mean, for the average of one
group, of several, and of groups of 3 and 50 samples in turn; for differences also how often interval and p disagree.
The last table is about scores of counts, of items of unequal size and difficulty.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.score.statistics import (
    SIGNIFICANT,
    Interval,
    bootstrap_average,
    bootstrap_counts,
    paired_average,
    paired_counts,
    score_of,
)

PAGE = Path(__file__).parent / "reference" / "interval-coverage.md"
DRAWS = 1_000
SIZES = {"3": (3,), "8": (8,), "20": (20,), "50": (50,), "3 and 50": (3, 50)}
GROUPS = (1, 4, 15)
# Name → scores and their probabilities, of one sample.
SCORES = {
    "binary, half right": ((0, 1), (0.5, 0.5)),
    "binary, 90 % right": ((0, 1), (0.1, 0.9)),
    "fractional": ((0, 0.25, 0.4, 0.5, 0.67, 0.8, 1), (0.05, 0.1, 0.2, 0.25, 0.2, 0.1, 0.1)),
    "zero-inflated": ((0, 0.3, 0.5, 1), (0.9, 0.04, 0.03, 0.03)),
    "mixed": ((0, 0.5, 0.67, 1), (0.3, 0.15, 0.15, 0.4)),
}
CHANGES = {
    "rare": ((-1, 0, 1), (0.02, 0.92, 0.06)),
    "only rises": ((0, 0.3, 1), (0.9, 0.05, 0.05)),
    "frequent": ((-1, 0, 1), (0.15, 0.55, 0.3)),
    "fractional": ((-1, -0.5, -0.2, 0, 0.2, 0.5, 1), (0.03, 0.05, 0.1, 0.54, 0.13, 0.1, 0.05)),
    "no effect": ((-1, -0.3, 0, 0.3, 1), (0.05, 0.05, 0.8, 0.05, 0.05)),
}
Distribution = tuple[tuple[float, ...], tuple[float, ...]]


def drawn(own: Distribution, sizes: list[int], rng: np.random.Generator) -> list[NDArray[np.float64]]:
    return [rng.choice(np.array(own[0], dtype=float), p=own[1], size=size) for size in sizes]


def holds(interval: Interval, mean: float) -> bool:
    return interval.low - 1e-9 <= mean <= interval.high + 1e-9


def coverage(own: Distribution, sizes: list[int], draws: int = DRAWS) -> float:
    """Return how often the interval of an average of groups of these sizes holds the true mean."""
    rng, truth = np.random.default_rng(1), float(np.dot(*own))
    return float(np.mean([holds(bootstrap_average(drawn(own, sizes, rng)), truth) for _ in range(draws)]))


def paired(own: Distribution, sizes: list[int], draws: int) -> NDArray[np.float64]:
    """Return how often the interval of a difference holds the truth, 0 and not p, and p and not 0."""
    rng, truth, found = np.random.default_rng(1), float(np.dot(*own)), []
    for _ in range(draws):
        change = paired_average([np.zeros(n) for n in sizes], drawn(own, sizes, rng), permutations=2_000)
        zero, is_small = holds(change, 0), change.p_value < SIGNIFICANT
        found.append((holds(change, truth), not zero and not is_small, zero and is_small))
    return np.mean(found, axis=0)


def counts_of(form: str, items: int, right: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the counts of items with 4 answers on average, of which a share around `right` is right."""
    totals, rates = rng.geometric(0.25, size=items), rng.beta(2 * right, 2 * (1 - right), size=items)
    hits = rng.binomial(totals, rates)
    if form == "share":
        return np.stack([hits, totals], axis=1).astype(float)
    if form == "f1":
        predicted = rng.poisson(totals) + 1
        return np.stack([predicted, rng.binomial(predicted, rates), totals, hits], axis=1).astype(float)
    wrong = rng.multinomial(totals - hits, [0.3, 0.3, 0.15, 0.15, 0.05, 0.05])
    confusions = np.zeros((items, 9))
    confusions[:, [0, 4, 8]] = rng.multinomial(hits, [0.6, 0.3, 0.1])
    confusions[:, [1, 2, 3, 5, 6, 7]] = wrong
    return confusions


def counts_coverage(form: str, items: int, draws: int = DRAWS // 2) -> tuple[float, float]:
    """Return how often, in percent, the intervals of a score of counts and of a difference hold the truth."""
    rng, held = np.random.default_rng(1), []
    before, after = (score_of(form, counts_of(form, 100_000, right, rng)) or 0.0 for right in (0.9, 0.93))
    for _ in range(draws):
        first, second = (counts_of(form, items, right, rng) for right in (0.9, 0.93))
        change = paired_counts(form, first, second, permutations=1)
        held.append((holds(bootstrap_counts(form, second), after), holds(change, after - before)))
    score, difference = 100 * np.mean(held, axis=0)
    return float(score), float(difference)


def sizes_of(name: str, groups: int) -> list[int]:
    return [SIZES[name][place % len(SIZES[name])] for place in range(groups)]


def tables() -> str:
    lines = [f"| scores | groups | {' | '.join(f'n = {name}' for name in SIZES)} |", "|---|---|" + "---|" * len(SIZES)]
    for title, own in SCORES.items():
        for groups in GROUPS:
            cells = [
                f"{100 * coverage(own, sizes_of(name, groups)):.1f}" if groups > 1 or name != "3 and 50" else "–"
                for name in SIZES
            ]
            lines.append(f"| {title} | {groups} | {' | '.join(cells)} |")
    lines += ["", "| changes | groups | n | covers | 0 is outside, p ≥ 0.05 | 0 is inside, p < 0.05 |"]
    lines.append("|---|---|---|---|---|---|")
    for title, own in CHANGES.items():
        for groups in GROUPS:
            for name in ("8", "50"):
                shares = paired(own, sizes_of(name, groups), DRAWS // 2)
                lines.append(f"| {title} | {groups} | {name} | {' | '.join(f'{100 * one:.1f}' for one in shares)} |")
    lines += ["", "| scores of counts | n | a score covers | a difference covers |", "|---|---|---|---|"]
    for form in ("share", "f1", "macro_f1"):
        for items in (3, 8, 20, 50):
            score, difference = counts_coverage(form, items)
            lines.append(f"| {form} | {items} | {score:.1f} | {difference:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    page, between = PAGE.read_text("utf-8"), r"(?s)(<!-- coverage -->\n).*(\n<!-- end -->)"
    PAGE.write_text(re.sub(between, lambda found: f"{found[1]}{tables()}{found[2]}", page), "utf-8")

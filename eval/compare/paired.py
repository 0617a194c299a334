"""Runs compared with the first run, sample by sample, with p-values corrected together (Holm)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from eval.score.predictions import SampleKey
from eval.score.statistics import Difference, Interval, holm, paired_average

Name = TypeVar("Name", bound=str)
_Value = TypeVar("_Value")
Groups = Sequence[Mapping[SampleKey, float]]  # values by sample; the mean over several groups is that of their means


@dataclass(frozen=True)
class ComparedRun:
    """One run's measures as fractions, without those that no sample has; the first run has no changes."""

    label: str
    scores: dict[str, Interval]
    changes: dict[str, Difference]


def changes_to_first(
    runs: Sequence[Mapping[Name, _Value]], difference: Callable[[_Value, _Value], Difference | None]
) -> list[dict[Name, Difference]]:
    """Return each run's differences to the first run, in the measures that both have; empty for the first.

    `difference` is from the first run's value to the other's; None if they cannot be compared.
    """
    first, *others = runs
    pairs = [{name: difference(value, own[name]) for name, value in first.items() if name in own} for own in others]
    adjusted = iter(corrected(change for own in pairs for change in own.values()))
    found = [{name: next(adjusted) for name in own} for own in pairs]
    return [{}, *({name: change for name, change in own.items() if change is not None} for own in found)]


def corrected(differences: Iterable[Difference | None]) -> list[Difference | None]:
    """Return the differences with p-values corrected for their number; None stays None."""
    given = list(differences)
    adjusted = iter(holm([one for one in given if one is not None]))
    return [None if one is None else next(adjusted) for one in given]


def paired_change(first: Groups, second: Groups, seed: int) -> Difference | None:
    """Return the difference over the samples that have a value in both; None if a group has no such sample."""
    pairs = [
        [(value, other[key]) for key, value in own.items() if key in other]
        for own, other in zip(first, second, strict=True)
    ]
    if not all(pairs):
        return None
    before, after = ([[pair[side] for pair in group] for group in pairs] for side in (0, 1))
    return paired_average(before, after, seed=seed)

"""Swap entities in the rows of a build, dataset by dataset, after refining, so that both contexts say the same."""

from __future__ import annotations

from collections import Counter

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.build.compose import Composition, source_of
from data_builders.build.options import BuildOptions
from data_builders.swap.swap import Refusal, Swaps, swap_samples, with_twins


def swap_train(options: BuildOptions, composition: Composition) -> dict[str, Swaps]:
    """Swap the share `options.swap` of each dataset's training rows; returns the counts by dataset.

    Raises:
        UserError: no row can be swapped.
    """
    if not options.swap:
        return {}
    train = composition.rows.get("train", [])
    places: dict[str, list[int]] = {}
    for place, row in enumerate(train):
        places.setdefault(source_of(row), []).append(place)
    swaps: dict[str, Swaps] = {}
    for name, its in places.items():
        rows, swaps[name] = swap_samples([train[at] for at in its], options.swap, options.random(f"{name}/swap"))
        for place, row in zip(its, rows, strict=True):
            train[place] = row
    if not any(done.wanted for done in swaps.values()):
        raise UserError(
            f"--swap {options.swap:g}: is less than one of {len(train):,} training rows", "raise the share"
        )
    if not any(done.swapped for done in swaps.values()):
        refused = sum((done.refused for done in swaps.values()), Counter[Refusal]())
        why = "".join(f"\n  {count:,}: {reason.value}" for reason, count in refused.most_common())
        raise UserError(
            f"--swap {options.swap:g}: found nothing to swap in {len(train):,} training rows{why}",
            remedy="drop --swap, or build data whose answers are entities in the context, such as habit",
        )
    return swaps


def add_twins(options: BuildOptions, composition: Composition) -> list[str]:
    """Add a swapped twin to the share `options.swap_test` of the test rows; returns a warning per incomplete dataset.

    The original's answer is then the habit: a model that uses the context answers the twin differently (Longpre et al.
    2021).

    Raises:
        UserError: no row can be swapped.
    """
    if not options.swap_test:
        return []
    test, warnings, found = composition.rows.get("test", []), [], list[EventSample]()
    for name in dict.fromkeys(map(source_of, test)):
        rows = [row for row in test if source_of(row) == name]
        twins, done = with_twins(rows, options.swap_test, options.random(f"{name}/swap-test"))
        found += twins
        if done.swapped < done.wanted:
            why = ", ".join(f"{count:,} {reason.value}" for reason, count in done.refused.most_common())
            warnings.append(f"{name} test: only {done.swapped:,} of {done.wanted:,} rows have a swapped twin ({why})")
    if len(found) == len(test):
        raise UserError(
            f"--swap-test {options.swap_test:g}: found nothing to swap in {len(test):,} test rows"
            + "".join(f"\n  {line}" for line in warnings),
            remedy="drop it, or build data whose answers are entities in the context",
        )
    composition.rows["test"] = found
    return warnings

"""Swap entities in the rows of a build, dataset by dataset, after refining, so that both contexts say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.build.compose import Composition, source_of
from data_builders.build.options import BuildOptions
from data_builders.swap.swap import Refusal, Swaps, swap_samples, with_twins


def swap_train(options: BuildOptions, composition: Composition) -> dict[str, Swaps]:
    """Swap the share `options.swap` of each dataset's training rows; returns the counts by dataset.

    Raises:
        UserError: no row can be swapped.
    """
    train = composition.rows.get("train", [])
    swaps: dict[str, Swaps] = {}
    for name, places in _places(train if options.swap else []).items():
        rows, swaps[name] = swap_samples([train[at] for at in places], options.swap, options.random(f"{name}/swap"))
        for place, row in zip(places, rows, strict=True):
            train[place] = row
    if options.swap:
        _check(f"--swap {options.swap:g}", swaps, len(train))
    return swaps


def add_twins(options: BuildOptions, composition: Composition) -> dict[str, Swaps]:
    """Add a swapped twin to the share `options.swap_test` of each dataset's test rows; returns the counts by dataset.

    The original's answer is then the habit: a model that uses the context answers the twin differently (Longpre et al.
    2021).

    Raises:
        UserError: no row can be swapped.
    """
    if not options.swap_test:
        return {}
    test, found, swaps = composition.rows.get("test", []), list[EventSample](), dict[str, Swaps]()
    for name, places in _places(test).items():
        rng = options.random(f"{name}/swap-test")
        rows, swaps[name] = with_twins([test[at] for at in places], options.swap_test, rng)
        found += rows
    _check(f"--swap-test {options.swap_test:g}", swaps, len(test))
    composition.rows["test"] = found
    return swaps


def incomplete(swaps: Mapping[str, Swaps], split: Split) -> list[str]:
    """Return a warning for each dataset with fewer swapped rows than wanted."""
    return [
        f"{name} {split}: only {done.swapped:,} of {done.wanted:,} rows could be swapped ({_reasons(done.refused)})"
        for name, done in swaps.items()
        if done.swapped < done.wanted
    ]


def _places(rows: Sequence[EventSample]) -> dict[str, list[int]]:
    """Return the places of each dataset's rows."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(source_of(row), []).append(place)
    return places


def _check(option: str, swaps: Mapping[str, Swaps], rows: int) -> None:
    if not any(done.swapped for done in swaps.values()):
        refused = sum((done.refused for done in swaps.values()), Counter[Refusal]())
        why = _reasons(refused) or "the share is less than one row"
        raise UserError(
            f"{option}: nothing was swapped in {rows:,} rows ({why})",
            remedy="drop it, raise the share, or build data whose answers are entities in the context, such as habit",
        )


def _reasons(refused: Counter[Refusal]) -> str:
    return ", ".join(f"{count:,} {reason.value}" for reason, count in refused.most_common())

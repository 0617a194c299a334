"""Scenarios for train, dev and test that share no signature (number of things in each box at the start)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.boxes.splits import Side, Variant, side_of
from data_builders.boxes.world import Scenario, State, World

SHARES: dict[Split, float] = {"train": 0.45, "dev": 0.10, "test": 0.45}
# Draws in a row that serve no split before the generator gives up.
_PATIENCE = 20_000


@dataclass
class Need:
    """How many samples or scenarios a split still needs."""

    total: int
    taken: int = 0

    @property
    def open_share(self) -> float:
        return 1 - self.taken / self.total if self.total else 0.0


@dataclass(frozen=True)
class Drawn:
    """A scenario, the split that it belongs to, and how it is told."""

    split: Split
    scenario: Scenario
    side: Side


def scenario_random(seed: int) -> random.Random:
    """The generator of all draws: one, so that training rows and benchmark files of a seed share their scenarios."""
    return random.Random(f"{seed}/boxes")


def whole_scenarios(count: int) -> dict[Split, Need]:
    """So many scenarios in the published proportions, 0.45/0.10/0.45."""
    train, dev = (round(count * SHARES[split]) for split in ("train", "dev"))
    return needs({"train": train, "dev": dev, "test": count - train - dev})


def needs(totals: Mapping[Split, int]) -> dict[Split, Need]:
    """Of the splits that need anything."""
    return {split: Need(total) for split, total in totals.items() if total}


def draw_scenarios(
    world: World,
    wanted: dict[Split, Need],
    rng: random.Random,
    *,
    variant: Variant = "base",
    usable: Callable[[Scenario], bool] = lambda scenario: True,
) -> Iterator[Drawn]:
    """Scenarios until every split has what it needs; the caller counts `taken` up for what it makes of each.

    A signature belongs to the split that lacks most, by share, when the signature first occurs; so all splits get
    common and rare signatures alike, and each fills up exactly. No initial state is used twice.

    Raises:
        UserError: the world is too small for what is needed.
    """
    owner: dict[tuple[int, ...], Split] = {}
    seen: set[State] = set()
    sides = {split: side_of(variant, split, world) for split in wanted}
    idle = 0
    while any(need.open_share > 0 for need in wanted.values()):
        start = world.initial_state(rng)
        signature = tuple(len(contents) for contents in start)
        split = owner.setdefault(signature, max(wanted, key=lambda name: wanted[name].open_share))
        taken = wanted[split].taken
        if start not in seen and wanted[split].open_share > 0:
            side = sides[split]
            scenario = side.world.play(side.renamed(start, world), rng)
            if usable(scenario):
                seen.add(start)
                yield Drawn(split, scenario, side)
        idle = 0 if wanted[split].taken > taken else idle + 1
        if idle > _PATIENCE:
            raise _world_too_small(wanted)


def _world_too_small(wanted: Mapping[Split, Need]) -> UserError:
    state = ", ".join(f"{split} {need.taken:,} of {need.total:,}" for split, need in wanted.items())
    return UserError(
        f"boxes: found no further initial state after {_PATIENCE:,} draws ({state}); the splits share no signature "
        "and no initial state is used twice",
        remedy="ask for fewer samples, a smaller boxes.min_numops, or raise boxes.boxes or boxes.max_objects",
    )

"""Scenarios for train, dev and test that share no signature (number of things in each box at the start).

The variants are the published ways to part training from evaluation (Kim & Schuster 2023, section 5.1). In each the
evaluation side is the base task, but for `move_contents` and `ambiref`; what differs is the training side.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.boxes.objects import OBJECTS, RARE_OBJECTS
from data_builders.boxes.wording import AlternateWording, PlainWording, Wording, ambiguous_names
from data_builders.boxes.world import Scenario, State, World

Variant = Literal["base", "numops", "vocab", "altforms", "altforms_numops", "move_contents", "ambiref"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_TRAIN_OPERATIONS = 2
SHARES: dict[Split, float] = {"train": 0.45, "dev": 0.10, "test": 0.45}
# Draws in a row that serve no split before the generator gives up.
_PATIENCE = 20_000


@dataclass(frozen=True)
class Side:
    """What the scenarios of a split are made of and how they are told.

    Attributes:
        ambiguous: each scenario has names of its own, of which several share a noun.
    """

    world: World
    wording: Wording
    ambiguous: bool = False

    def tell(self, rng: random.Random) -> Wording:
        """The wording of one scenario."""
        if not self.ambiguous:
            return self.wording
        return replace(self.wording, names=ambiguous_names(self.world.objects, rng), omit_modifiers=True)


def side_of(variant: Variant, split: Split, common: World) -> Side:
    """The side of a split.

    Args:
        common: the world of the base task; its objects must be `OBJECTS`, to which the rare ones correspond.
    """
    if variant in ("move_contents", "ambiref"):
        return Side(common, PlainWording(move_contents=variant == "move_contents"), ambiguous=variant == "ambiref")
    if split != "train":
        return Side(common, PlainWording())
    world = common
    if variant in ("numops", "altforms_numops"):
        world = replace(world, operations=min(world.operations, _TRAIN_OPERATIONS))
    names = dict(zip(OBJECTS, RARE_OBJECTS, strict=True)) if variant not in ("base", "numops") else {}
    wording = AlternateWording if variant in ("altforms", "altforms_numops") else PlainWording
    return Side(world, wording(names=names))


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
    """A scenario, the split that it belongs to, and how it is told.

    Attributes:
        number: from 0 on, over all splits.
    """

    number: int
    split: Split
    scenario: Scenario
    wording: Wording


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
            scenario = sides[split].world.play(start, rng)
            if usable(scenario):
                yield Drawn(len(seen), split, scenario, sides[split].tell(rng))
                seen.add(start)
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

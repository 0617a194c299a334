"""Scenarios for train, dev and test that share no signature (number of things in each box at the start).

The variants are the published ways to separate training from evaluation (Kim & Schuster 2023, section 5.1). Evaluation
uses the base task, except in `move_contents` and `ambiref`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.boxes.wording import Wording, ambiguous_names
from data_builders.boxes.world import OBJECTS, RARE_OBJECTS, BoxWorld, Scenario, State

Variant = Literal["base", "numops", "vocab", "altforms", "altforms_numops", "move_contents", "ambiref"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_TRAIN_OPERATIONS = 2
# Useless draws in a row before the generator gives up.
_PATIENCE = 20_000


def _side(variant: Variant, split: Split, common: BoxWorld) -> tuple[BoxWorld, Wording]:
    """The world and the wording of a split's scenarios; `common` is the world of the base task."""
    if variant in ("move_contents", "ambiref"):
        return common, Wording(move_contents=variant == "move_contents", omit_modifiers=variant == "ambiref")
    if split != "train":
        return common, Wording()
    world = common
    if variant in ("numops", "altforms_numops"):
        world = replace(world, operations=min(world.operations, _TRAIN_OPERATIONS))
    names = dict(zip(OBJECTS, RARE_OBJECTS, strict=True)) if variant not in ("base", "numops") else {}
    return world, Wording(variant in ("altforms", "altforms_numops"), names=names)


@dataclass
class Need:
    """The number of samples or scenarios that a split needs and has."""

    total: int
    taken: int = 0

    @property
    def open_share(self) -> float:
        return 1 - self.taken / self.total if self.total else 0.0


@dataclass(frozen=True)
class Drawn:
    """A scenario with its split, its wording and its number, which counts from 0 over all splits."""

    number: int
    split: Split
    scenario: Scenario
    wording: Wording


def scenario_random(seed: int) -> random.Random:
    """Return the generator of all draws, so that training rows and benchmark files of a seed share scenarios."""
    return random.Random(f"{seed}/boxes")


def needs(train: int, dev: int, test: int) -> dict[Split, Need]:
    """Return the needs of the splits that need anything."""
    totals: dict[Split, int] = {"train": train, "dev": dev, "test": test}
    return {split: Need(total) for split, total in totals.items() if total}


def whole_scenarios(count: int) -> dict[Split, Need]:
    """Return the needs of a number of scenarios in the published proportions, 0.45/0.10/0.45."""
    train, dev = round(count * 0.45), round(count * 0.10)
    return needs(train, dev, count - train - dev)


def draw_scenarios(
    world: BoxWorld,
    split_needs: dict[Split, Need],
    rng: random.Random,
    *,
    variant: Variant,
) -> Iterator[Drawn]:
    """Yield scenarios until every split has what it needs; the caller increases `taken` for each scenario.

    A new signature goes to the split that lacks most, by share. So all splits get common and rare ones, and fill up
    exactly. No initial state is used twice. UserError if the world is too small for the needs.
    """
    owner: dict[tuple[int, ...], Split] = {}
    seen: set[State] = set()
    sides = {split: _side(variant, split, world) for split in split_needs}
    idle = 0
    while any(need.open_share > 0 for need in split_needs.values()):
        start = world.initial_state(rng)
        signature = tuple(len(contents) for contents in start)
        split = owner.setdefault(signature, max(split_needs, key=lambda name: split_needs[name].open_share))
        taken = split_needs[split].taken
        if start not in seen and split_needs[split].open_share > 0:
            its_world, wording = sides[split]
            scenario = its_world.play(start, rng)
            if variant == "ambiref":  # each scenario has its own names, and several of these share a noun
                wording = replace(wording, names=ambiguous_names(world.objects, rng))
            yield Drawn(len(seen), split, scenario, wording)
            seen.add(start)
        idle = 0 if split_needs[split].taken > taken else idle + 1
        if idle > _PATIENCE:
            state = ", ".join(f"{split} {need.taken:,} of {need.total:,}" for split, need in split_needs.items())
            raise UserError(
                f"boxes: found no further initial state after {_PATIENCE:,} draws ({state}); the splits share no "
                "signature and no initial state is used twice",
                remedy="ask for fewer samples, or raise boxes.boxes or boxes.max_objects",
            )

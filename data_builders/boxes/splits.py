"""The published ways to part training from evaluation (Kim & Schuster 2023, section 5.1).

In each variant the evaluation side is the base task, but for `move_contents`; what differs is the training side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from d2e_sft.data.sample import Split
from data_builders.boxes.objects import OBJECTS, RARE_OBJECTS
from data_builders.boxes.wording import AlternateWording, PlainWording, Wording
from data_builders.boxes.world import State, World

Variant = Literal["base", "numops", "vocab", "altforms", "altforms_numops", "move_contents"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_TRAIN_OPERATIONS = 2


@dataclass(frozen=True)
class Side:
    """What the scenarios of a split are made of and how they are told."""

    world: World
    wording: Wording

    def renamed(self, start: State, common: World) -> State:
        """An initial state drawn with the objects of `common`, with this side's objects in their places."""
        if self.world.objects == common.objects:
            return start
        names = dict(zip(common.objects, self.world.objects, strict=True))
        return tuple(frozenset(names[thing] for thing in contents) for contents in start)


def side_of(variant: Variant, split: Split, common: World) -> Side:
    """The side of a split.

    Args:
        common: the world of the base task; its objects must be `OBJECTS`, to which the rare ones correspond.
    """
    if variant == "move_contents":
        return Side(common, PlainWording(move_contents=True))
    world, wording = common, PlainWording()
    if split != "train":
        return Side(world, wording)
    if variant in ("numops", "altforms_numops"):
        world = replace(world, operations=min(world.operations, _TRAIN_OPERATIONS))
    if variant in ("vocab", "altforms", "altforms_numops"):
        assert tuple(common.objects) == OBJECTS
        world = replace(world, objects=RARE_OBJECTS)
    if variant in ("altforms", "altforms_numops"):
        return Side(world, AlternateWording())
    return Side(world, wording)

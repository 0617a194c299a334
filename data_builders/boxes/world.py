"""The Boxes world (Kim & Schuster, ACL 2023): boxes that hold things, and operations that change what they hold.

Each draw follows the published generator (`sample_operation_sequences`), so the distribution is the same. All draws
use Python's own generator, so a seed gives the same world everywhere.
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_package_yaml

State = tuple[frozenset[str], ...]  # the contents of box 0, 1, …

# The names of things: common ones, and rare ones that correspond to them.
_NAMES = load_package_yaml(Path(__file__).with_name("objects.yaml"))
OBJECTS, RARE_OBJECTS = (tuple[str, ...](_NAMES[name].split()) for name in ("common", "rare"))
_TRIES = 10_000


@dataclass(frozen=True)
class Operation:
    """One step: `things` leave `source` (move, remove) or enter `target` (move, put); -1 means no box."""

    kind: Literal["move", "remove", "put"]
    things: frozenset[str]
    source: int = -1
    target: int = -1

    def touches(self, box: int) -> bool:
        return box in (self.source, self.target)


@dataclass(frozen=True)
class Scenario:
    """An initial state and the operations that follow; `states[k]` is the state after k operations."""

    states: tuple[State, ...]
    operations: tuple[Operation, ...]

    @property
    def signature(self) -> tuple[int, ...]:
        """The number of things in each box at the start; train and test share no signature."""
        return tuple(len(contents) for contents in self.states[0])


@dataclass(frozen=True)
class BoxWorld:
    """The sizes of the world.

    Attributes:
        expected_objects: Mean of the Poisson draw of a box's initial contents, clipped at `max_objects`. An operation
            puts in half as many on average, rounded down, but at least 1.
    """

    boxes: int
    max_objects: int
    expected_objects: float
    operations: int
    objects: Sequence[str]

    def initial_state(self, rng: random.Random) -> State:
        """Draw the contents of all boxes; UserError if there are not enough objects for the expected number."""
        for _ in range(_TRIES):
            sizes = [_poisson(self.expected_objects, rng) for _ in range(self.boxes)]
            if sum(sizes) <= len(self.objects):  # before clipping, like the published generator
                break
        else:
            raise UserError(
                f"boxes: {self.boxes} boxes of {self.expected_objects:g} expected objects never drew at most "
                f"{len(self.objects)}, the number of different objects",
                remedy="lower boxes.expected_objects or boxes.boxes",
            )
        sizes = [min(size, self.max_objects) for size in sizes]
        things = iter(rng.sample(self.objects, sum(sizes)))
        return tuple(frozenset(itertools.islice(things, size)) for size in sizes)

    def play(self, start: State, rng: random.Random) -> Scenario:
        """Draw the operations of a scenario with a given initial state."""
        states, operations = [start], []
        for _ in range(self.operations):
            operation = self._operation(states[-1], rng)
            operations.append(operation)
            states.append(apply(states[-1], operation))
        return Scenario(tuple(states), tuple(operations))

    def _operation(self, state: State, rng: random.Random) -> Operation:
        # An impossible operation is redrawn as a whole, with kind and box; of an empty subset, only the things.
        for _ in range(_TRIES):
            kind, box = rng.choice(("move", "remove", "put")), rng.randrange(self.boxes)
            operation = self._put(box, state, rng) if kind == "put" else self._take(kind == "move", box, state, rng)
            if operation is not None:
                return operation
        raise UserError(
            f"boxes: no operation is possible with {self.boxes} boxes of {self.max_objects} objects",
            remedy="raise boxes.boxes or boxes.max_objects",
        )

    def _put(self, target: int, state: State, rng: random.Random) -> Operation | None:
        count = _poisson(max(1, int(self.expected_objects / 2)), rng)
        if count == 0 or len(state[target]) + count > self.max_objects:
            return None
        placed = frozenset().union(*state)
        # Things that were removed earlier may come back.
        free = [thing for thing in self.objects if thing not in placed]
        return Operation("put", frozenset(rng.sample(free, count)), target=target) if len(free) >= count else None

    def _take(self, move: bool, source: int, state: State, rng: random.Random) -> Operation | None:
        if not state[source] or (move and self.boxes == 1):
            return None
        target = rng.choice([box for box in range(self.boxes) if box != source]) if move else -1
        things: frozenset[str] = frozenset()
        while not things:  # each thing with probability 1/2, redrawn until there is one
            # Sorted, since the order of a set of strings differs between processes.
            things = frozenset(thing for thing in sorted(state[source]) if rng.random() < 0.5)
        if move and len(state[target]) + len(things) > self.max_objects:
            return None
        return Operation("move" if move else "remove", things, source, target)


def apply(state: State, operation: Operation) -> State:
    boxes = list(state)
    if operation.source >= 0:
        boxes[operation.source] -= operation.things
    if operation.target >= 0:
        boxes[operation.target] |= operation.things
    return tuple(boxes)


def _poisson(mean: float, rng: random.Random) -> int:
    # Knuth's multiplication method; the means here are small.
    limit, product, count = math.exp(-mean), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count

"""The Boxes world (Kim & Schuster, ACL 2023): boxes that hold things, operations that change it, and both in words.

Each draw follows the published generator (`sample_operation_sequences`), so the distribution is the same. All draws
use Python's own generator, so a seed gives the same world everywhere.

The plain wording uses boxes and numbers, the other one containers and letters; apart from `the` and `into` they share
no word (Kim & Schuster 2023, Table 2). Both can rename the things of the world: with another list, or with nouns that
several things share, distinguished by a modifier (`the big car`).
"""

import itertools
import math
import random
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


# In words

MASK = "<extra_id_0>"  # of T5
EMPTY = "is empty"  # `contains nothing` in the form for fine-tuning T5
MODIFIERS = ("big", "small", "blue", "green", "red", "yellow")
# Kind of operation → its sentence in the plain and in the other wording.
_SENTENCES = {
    "move": (
        "Move {things} from {source} to {target}.",
        "Pick up {things} in {source} and place {them} into {target}.",
    ),
    "move_contents": (
        "Move the contents of {source} to {target}.",
        "Pick up the contents of {source} and place them into {target}.",
    ),
    "remove": ("Remove {things} from {source}.", "Take {things} out of {source}."),
    "put": ("Put {things} into {target}.", "Place {things} inside {target}."),
}


@dataclass(frozen=True)
class Wording:
    """Puts states and operations into words.

    Attributes:
        alternate: Use the other wording instead of the plain one.
        move_contents: Say `the contents` if an operation moves everything in a box.
        names: Thing → its name; other things have their own names.
        omit_modifiers: Leave out the modifier of a thing if no other thing in the box has its noun.
    """

    alternate: bool = False
    move_contents: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    omit_modifiers: bool = False

    def name(self, box: int) -> str:
        """Return `Box 0` or `Container A`."""
        if not self.alternate:
            return f"Box {box}"
        letters = string.ascii_uppercase
        return f"Container {letters[box]}" if box < len(letters) else f"Container {letters[box // 26 - 1]}{box % 26}"

    def state(self, boxes: Iterable[tuple[int, frozenset[str]]]) -> str:
        """Return boxes and their contents in one sentence.

        Plain: `Box 0 contains the a and the b, Box 1 contains nothing.`
        Alternate: `The a and the b are in Container A, there is nothing in Container B.`
        """
        clauses = []
        for box, things in boxes:
            if not self.alternate:
                clauses.append(f"{self.name(box)} contains {self.say(things)}")
            elif things:
                clauses.append(f"{self.say(things)} {'is' if len(things) == 1 else 'are'} in {self.name(box)}")
            else:
                clauses.append(f"there is nothing in {self.name(box)}")
        text = ", ".join(clauses)
        return f"{text[:1].upper()}{text[1:]}."

    def say(self, things: frozenset[str], short: frozenset[str] = frozenset()) -> str:
        """Return `the a and the b`, in the things' alphabetical order, or `nothing`; `short` ones are only a noun."""
        called = [(self.names.get(thing, thing), thing in short) for thing in sorted(things)]
        return " and ".join(f"the {name.split()[-1] if noun else name}" for name, noun in called) or "nothing"

    def clause(self, things: frozenset[str]) -> str:
        """Return what the form for fine-tuning T5 says of a box: `contains the a and the b`, or `is empty`."""
        return f"contains {self.say(things)}" if things else EMPTY

    def operation(self, operation: Operation, before: State) -> str:
        """Return an operation as a sentence; `before` is the state that it changes."""
        whole = self._says_contents(operation, before)
        sentences = _SENTENCES["move_contents" if whole else operation.kind]
        return sentences[self.alternate].format(
            things=self.say(operation.things, self._short(operation, before)),
            them="it" if len(operation.things) == 1 else "them",
            source=self.name(operation.source),
            target=self.name(operation.target),
        )

    def sentences(self, scenario: Scenario) -> list[str]:
        return [self.operation(*step) for step in zip(scenario.operations, scenario.states, strict=False)]

    def leaves_open(self, operation: Operation, before: State) -> bool:
        """Return whether the taken things follow only from the earlier contents of their box."""
        return self._says_contents(operation, before) or bool(self._short(operation, before))

    def _says_contents(self, operation: Operation, before: State) -> bool:
        return self.move_contents and operation.kind == "move" and operation.things == before[operation.source]

    def _short(self, operation: Operation, before: State) -> frozenset[str]:
        """The things whose modifier is left out: no other thing in the box has their noun."""
        if not self.omit_modifiers or operation.source < 0:
            return frozenset()
        nouns = Counter(self.names[thing].split()[-1] for thing in before[operation.source])
        return frozenset(thing for thing in operation.things if nouns[self.names[thing].split()[-1]] == 1)


def in_words_of_t5(text: str) -> str:
    """Return a description in the words of the form for fine-tuning T5, in which an empty box `is empty`."""
    return text.replace("contains nothing", EMPTY)


def ambiguous_names(things: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Return for each thing a noun with a modifier; up to six things share a noun (AmbiRef).

    As in the published generator (`make_modifier_map`): a sixth of the nouns and one more, each with all modifiers.
    """
    nouns = rng.sample(things, len(things) // len(MODIFIERS) + 1)
    called = [f"{modifier} {noun}" for noun in nouns for modifier in MODIFIERS]
    return dict(zip(rng.sample(things, len(things)), reversed(called), strict=False))


def refined_context(scenario: Scenario, wording: Wording, box: int, after: int) -> str:
    """Return exactly the text on which the contents of a box after a number of operations depend.

    That is the box's initial contents and the operations that touch it. If an operation brought `the contents` of
    another box, or things without their modifiers, it includes the text on which that box's contents depended.
    """
    needed, kept = {box}, []
    sentences = wording.sentences(scenario)
    for step in reversed(range(after)):
        operation, before = scenario.operations[step], scenario.states[step]
        if not any(operation.touches(number) for number in needed):
            continue
        kept.append(sentences[step])
        if operation.target in needed and wording.leaves_open(operation, before):
            needed.add(operation.source)
    start = wording.state((number, scenario.states[0][number]) for number in sorted(needed))
    return " ".join([start, *reversed(kept)])

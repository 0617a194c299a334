"""The two ways in which the Boxes task is put into words, and which sentences an answer depends on.

The plain one speaks of boxes and numbers, the other of containers and letters; apart from `the` and `into` they share
no word (Kim & Schuster 2023, Table 2). Both can call the things by other names than the world does: those of another
list, or nouns of which several boxes hold one, told apart by a modifier (`the big car`).
"""

from __future__ import annotations

import random
import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from data_builders.boxes.world import Operation, Scenario, State

MODIFIERS = ("big", "small", "blue", "green", "red", "yellow")


@dataclass(frozen=True)
class Wording(ABC):
    """Puts states and operations into words.

    Attributes:
        move_contents: say `the contents` where an operation moves all that a box holds. What moved must then be known
            from what came before.
        names: thing → what it is called; the things that it lacks have their own names.
        omit_modifiers: where something is taken, leave the modifier out if no other thing of the box has that noun.
    """

    move_contents: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    omit_modifiers: bool = False
    sentences_by_kind: ClassVar[dict[str, str]]

    @abstractmethod
    def name(self, box: int) -> str:
        """`Box 0` or `Container A`."""

    @abstractmethod
    def state(self, state: State) -> str:
        """All boxes in one sentence, without its full stop."""

    @abstractmethod
    def clause(self, box: int, contents: frozenset[str]) -> str:
        """One box's part of that sentence."""

    def say(self, things: frozenset[str], short: frozenset[str] = frozenset()) -> str:
        """`the a and the b`, in the alphabetical order of the things (not of what they are called), or `nothing`.

        Args:
            short: things that are called by their noun alone.
        """
        called = [(self.names.get(thing, thing), thing in short) for thing in sorted(things)]
        return " and ".join(f"the {name.split()[-1] if noun else name}" for name, noun in called) or "nothing"

    def operation(self, operation: Operation, before: State) -> str:
        """An operation as a sentence; `before` is the state that it changes."""
        whole = self._says_contents(operation, before)
        sentence = self.sentences_by_kind["move_contents" if whole else operation.kind]
        return sentence.format(
            things=self.say(operation.things, self._short(operation, before)),
            them="it" if len(operation.things) == 1 else "them",
            source=self.name(operation.source),
            target=self.name(operation.target),
        )

    def sentences(self, scenario: Scenario) -> list[str]:
        """The operations."""
        return [
            self.operation(operation, before)
            for operation, before in zip(scenario.operations, scenario.states, strict=False)
        ]

    def leaves_open(self, operation: Operation, before: State) -> bool:
        """Whether which things are taken must be known from what their box held."""
        return self._says_contents(operation, before) or bool(self._short(operation, before))

    def _says_contents(self, operation: Operation, before: State) -> bool:
        return self.move_contents and operation.kind == "move" and operation.things == before[operation.source]

    def _short(self, operation: Operation, before: State) -> frozenset[str]:
        """The things whose modifier is left out: of those of the box, the only ones with their noun."""
        if not self.omit_modifiers or operation.source < 0:
            return frozenset()
        nouns = Counter(self.names[thing].split()[-1] for thing in before[operation.source])
        return frozenset(thing for thing in operation.things if nouns[self.names[thing].split()[-1]] == 1)


class PlainWording(Wording):
    """`Box 0 contains the a and the b, Box 1 contains nothing.`"""

    sentences_by_kind: ClassVar[dict[str, str]] = {
        "move": "Move {things} from {source} to {target}.",
        "move_contents": "Move the contents of {source} to {target}.",
        "remove": "Remove {things} from {source}.",
        "put": "Put {things} into {target}.",
    }

    def name(self, box: int) -> str:
        return f"Box {box}"

    def state(self, state: State) -> str:
        return ", ".join(self.clause(box, contents) for box, contents in enumerate(state))

    def clause(self, box: int, contents: frozenset[str]) -> str:
        return f"{self.name(box)} contains {self.say(contents)}"


class AlternateWording(Wording):
    """`The a and the b are in Container A, there is nothing in Container B.`"""

    sentences_by_kind: ClassVar[dict[str, str]] = {
        "move": "Pick up {things} in {source} and place {them} into {target}.",
        "move_contents": "Pick up the contents of {source} and place them into {target}.",
        "remove": "Take {things} out of {source}.",
        "put": "Place {things} inside {target}.",
    }

    def name(self, box: int) -> str:
        letters = string.ascii_uppercase
        return f"Container {letters[box]}" if box < len(letters) else f"Container {letters[box // 26 - 1]}{box % 26}"

    def state(self, state: State) -> str:
        text = ", ".join(self.clause(box, contents) for box, contents in enumerate(state))
        return text[:1].upper() + text[1:]

    def clause(self, box: int, contents: frozenset[str]) -> str:
        if not contents:
            return f"there is nothing in {self.name(box)}"
        return f"{self.say(contents)} {'is' if len(contents) == 1 else 'are'} in {self.name(box)}"


def ambiguous_names(things: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Thing → a noun with a modifier, so that up to six things share a noun (AmbiRef).

    As in the published generator (`make_modifier_map`): a sixth of the nouns and one more, each with all modifiers.
    """
    nouns = rng.sample(things, len(things) // len(MODIFIERS) + 1)
    called = [f"{modifier} {noun}" for noun in nouns for modifier in MODIFIERS]
    return dict(zip(rng.sample(things, len(things)), reversed(called), strict=False))


def refined_context(scenario: Scenario, wording: Wording, box: int, after: int) -> str:
    """What the contents of a box after so many operations depend on, and nothing else.

    That is the box's initial contents and the operations that touch it; where an operation brought `the contents` of
    another box, or things of it without their modifiers, also what that one's contents depended on.
    """
    needed, kept = {box}, []
    sentences = wording.sentences(scenario)
    for step in reversed(range(after)):
        operation, before = scenario.operations[step], scenario.states[step]
        if not any(operation.touches(one) for one in needed):
            continue
        kept.append(sentences[step])
        if operation.target in needed and wording.leaves_open(operation, before):
            needed.add(operation.source)
    start = ", ".join(wording.clause(one, scenario.states[0][one]) for one in sorted(needed))
    return " ".join([f"{start[:1].upper()}{start[1:]}.", *reversed(kept)])

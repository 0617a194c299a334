"""The two ways in which the Boxes task is put into words, and which sentences an answer depends on.

The plain one speaks of boxes and numbers, the other of containers and letters; apart from `the` and `into` they share
no word (Kim & Schuster 2023, Table 2).
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from data_builders.boxes.world import Operation, Scenario, State


@dataclass(frozen=True)
class Wording(ABC):
    """Puts states and operations into words.

    Attributes:
        move_contents: say `the contents` where an operation moves all that a box holds. What moved must then be known
            from what came before.
    """

    move_contents: bool = False
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

    def operation(self, operation: Operation, before: State) -> str:
        """An operation as a sentence; `before` is the state that it changes."""
        unnamed = self.says_contents(operation, before)
        sentence = self.sentences_by_kind["move_contents" if unnamed else operation.kind]
        return sentence.format(
            things=say_contents(operation.things),
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

    def says_contents(self, operation: Operation, before: State) -> bool:
        """Whether the operation is worded without the names of the things."""
        return self.move_contents and operation.kind == "move" and operation.things == before[operation.source]


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
        return f"{self.name(box)} contains {say_contents(contents)}"


class AlternateWording(Wording):
    """`The a and the b are in Container A, there is nothing in Container B.`"""

    sentences_by_kind: ClassVar[dict[str, str]] = {
        "move": "Pick up {things} in {source} and place {them} into {target}.",
        "move_contents": "Pick up the contents of {source} and place {them} into {target}.",
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
        return f"{say_contents(contents)} {'is' if len(contents) == 1 else 'are'} in {self.name(box)}"


def say_contents(contents: frozenset[str]) -> str:
    """`the a and the b`, in alphabetical order, or `nothing`."""
    return " and ".join(f"the {thing}" for thing in sorted(contents)) or "nothing"


def refined_context(scenario: Scenario, wording: Wording, box: int, after: int) -> str:
    """What the contents of a box after so many operations depend on, and nothing else.

    That is the box's initial contents and the operations that touch it; where an operation brought `the contents` of
    another box, also what that one's contents depended on.
    """
    needed, kept = {box}, []
    sentences = wording.sentences(scenario)
    for step in reversed(range(after)):
        operation, before = scenario.operations[step], scenario.states[step]
        if not any(operation.touches(one) for one in needed):
            continue
        kept.append(sentences[step])
        if operation.target in needed and wording.says_contents(operation, before):
            needed.add(operation.source)
    start = ", ".join(wording.clause(one, scenario.states[0][one]) for one in sorted(needed))
    return " ".join([f"{start[:1].upper()}{start[1:]}.", *reversed(kept)])

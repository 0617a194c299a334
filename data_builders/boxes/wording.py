"""The two wordings of the Boxes task, and the sentences on which an answer depends.

The plain one uses boxes and numbers, the other one containers and letters; apart from `the` and `into` they share no
word (Kim & Schuster 2023, Table 2). Both can rename the things of the world: with another list, or with nouns that
several things share, distinguished by a modifier (`the big car`).
"""

import random
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from data_builders.boxes.world import Operation, Scenario, State

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

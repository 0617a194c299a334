"""A second simulation of the world, which knows the text alone."""

from __future__ import annotations

import re

_THING = r"\b[Tt]he ((?:(?:big|small|blue|green|red|yellow) )?[\w-]+)"


def things_in(text: str) -> set[str]:
    """What a text names, with the modifiers that it gives."""
    return set(re.findall(_THING, text))


def contents_by_text(text: str) -> dict[str, set[str]]:
    """What each box holds after all sentences; starts from the clauses that are there.

    A noun without its modifier must be the only one of its kind in the box from which it is taken.
    """
    opening, *operations = text.removesuffix(".").split(". ")
    found = [re.fullmatch(r"Box (\d+) contains (.+)", clause) for clause in opening.split(", ")]
    world = {match[1]: things_in(match[2]) for match in found if match}
    told = set(world)
    for sentence in operations:
        boxes = re.findall(r"Box (\d+)", sentence)
        moved = things_in(sentence)
        if not sentence.startswith("Put"):
            if boxes[0] in told:
                moved = _resolved(moved, world[boxes[0]], whole="the contents of" in sentence)
            world.setdefault(boxes[0], set()).difference_update(moved)
        if not sentence.startswith("Remove"):
            world.setdefault(boxes[-1], set()).update(moved)
    return world


def _resolved(named: set[str], held: set[str], *, whole: bool) -> set[str]:
    if whole:
        return set(held)
    resolved = set()
    for name in named:
        (thing,) = [thing for thing in held if name in (thing, thing.split()[-1])]
        resolved.add(thing)
    return resolved

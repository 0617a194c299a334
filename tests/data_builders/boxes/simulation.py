"""A second simulation of the Boxes world, which knows only the text; and builds that tests share."""

import re
from functools import cache

from d2e_sft.data.sample import EventSample
from data_builders.boxes.source import Variant
from data_builders.raw.reader import BadRows
from data_builders.raw.source import Job
from data_builders.sources import SOURCES

_THING = r"\b[Tt]he ((?:(?:big|small|blue|green|red|yellow) )?[\w-]+)"


@cache
def scenarios(count: int, variant: Variant = "base", form: str = "question") -> dict[str, list[EventSample]]:
    """The rows of whole scenarios of a variant, by split."""
    source = SOURCES["boxes"]
    options = source.options.model_validate({"scenarios": count, "variant": variant, "form": form})
    found = source.read(Job(source, {}, 0, options, BadRows()))
    return {split: list(rows.rows) for split, rows in found.items()}


def things_in(text: str) -> set[str]:
    """The things that a text names, with their modifiers."""
    return set(re.findall(_THING, text))


def contents_by_text(text: str, *, strict: bool = False) -> dict[str, set[str]]:
    """The contents of each box after all sentences of a context; `strict` also asserts that each step is possible."""
    opening, *operations = text.removesuffix(".").split(". ")
    found = [re.fullmatch(r"Box (\d+) contains (.+)", clause) for clause in opening.split(", ")]
    world = {match[1]: things_in(match[2]) for match in found if match}
    known = set(world)
    for sentence in operations:
        boxes = re.findall(r"Box (\d+)", sentence)
        moved = things_in(sentence)
        if strict:
            held = world[boxes[0]] if not sentence.startswith("Put") else set().union(*world.values())
            assert moved
            assert not moved & held if sentence.startswith("Put") else moved <= held
            assert len(set(boxes)) == len(boxes)
        if not sentence.startswith("Put"):
            if boxes[0] in known:
                # A noun without its modifier must be the only one of its kind in the box from which it is taken.
                moved = _resolve(moved, world[boxes[0]], whole="the contents of" in sentence)
            world.setdefault(boxes[0], set()).difference_update(moved)
        if not sentence.startswith("Remove"):
            world.setdefault(boxes[-1], set()).update(moved)
    return world


def _resolve(named: set[str], held: set[str], *, whole: bool) -> set[str]:
    if whole:
        return set(held)
    resolved = set()
    for name in named:
        (thing,) = [thing for thing in held if name in (thing, thing.split()[-1])]
        resolved.add(thing)
    return resolved

"""Stories of things in places, drawn so that only reading reveals whether a thing ended at its habitual place.

Every answerable story has a second thing, the rival. If the asked thing ends at its habitual place (`aligned`), the
rival ends at another place. Otherwise (`conflict`) the rival ends at the asked thing's habitual place. All other
places are drawn in the same way for all things, backwards from the end. So the stories of both subsets have one
distribution, apart from the names of asked thing and rival. The places, their number and order, and the number of
moves do not reveal the subset.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.data.sample import Subset
from d2e_sft.util.files import load_package_yaml

_WORDS = load_package_yaml(Path(__file__).with_name("words.yaml"))
THINGS, PLACES, PEOPLE = (tuple[str, ...](_WORDS[name].split()) for name in ("things", "places", "people"))
KNOWN_HABITS: dict[str, str] = _WORDS["known_habits"]


@dataclass(frozen=True)
class Habits:
    """The places of a world, and the habitual place of each of its things."""

    places: tuple[str, ...]
    habit: Mapping[str, str]

    @property
    def things(self) -> tuple[str, ...]:
        return tuple(self.habit)


@dataclass(frozen=True)
class Move:
    """Someone moves a thing; `place` is missing if it is unknown."""

    person: str
    thing: str
    place: str | None

    def __str__(self) -> str:
        if self.place is None:
            return f"{self.person} takes the {self.thing} away."
        return f"{self.person} moves the {self.thing} to the {self.place}."


@dataclass(frozen=True)
class Story:
    """The first place of each thing, in the order of the story, and the moves."""

    start: tuple[tuple[str, str], ...]
    moves: tuple[Move, ...]

    @property
    def text(self) -> str:
        return " ".join([*(_say(thing, place) for thing, place in self.start), *map(str, self.moves)])

    def about(self, thing: str) -> str:
        """Return the sentences that name a thing, on which its place depends; empty if none does."""
        start = [_say(one, place) for one, place in self.start if one == thing]
        return " ".join([*start, *(str(move) for move in self.moves_of(thing))])

    def moves_of(self, thing: str) -> list[Move]:
        return [move for move in self.moves if move.thing == thing]

    @property
    def events(self) -> tuple[tuple[str, str | None], ...]:
        """The story without the names of people; two stories with equal events are the same."""
        return (*self.start, *((move.thing, move.place) for move in self.moves))


def draw_story(
    habits: Habits, asked: str, subset: Subset, rng: random.Random, *, things: int, moves: int
) -> tuple[Story, str | None]:
    """Draw a story for a question about a thing; return it with the thing's last place (None if it is unknown).

    Args:
        subset: `aligned`, `conflict`, `irrelevant` (the story is about other things) or `unanswerable` (in the end the
            thing is taken to an unknown place).
        things: The number of things in the story, at least 2.
        moves: The number of moves, at least 1 for `unanswerable`.
    """
    strangers = [thing for thing in habits.things if thing != asked]
    if subset == "irrelevant":
        return _draw(habits, rng.sample(strangers, things), {}, moves, rng), None
    others = rng.sample(strangers, things - 1)
    rival, habitual = rng.choice(others), habits.habit[asked]
    other = rng.choice([place for place in habits.places if place != habitual])
    ends = {asked: habitual, rival: other} if subset == "aligned" else {asked: other, rival: habitual}
    story = _draw(habits, [asked, *others], ends, moves, rng)
    if subset != "unanswerable":
        return story, ends[asked]
    while not story.moves_of(asked):
        story = _draw(habits, [asked, *others], ends, moves, rng)
    last = max(number for number, move in enumerate(story.moves) if move.thing == asked)
    away = Move(story.moves[last].person, asked, None)
    return Story(story.start, (*story.moves[:last], away, *story.moves[last + 1 :])), None


def _draw(habits: Habits, things: Sequence[str], ends: Mapping[str, str], moves: int, rng: random.Random) -> Story:
    """A story with things and moves in random order; a thing ends at its place in `ends`, or anywhere."""
    order = rng.sample(things, len(things))
    moved = [rng.choice(order) for _ in range(moves)]
    way = {}
    for thing in order:
        back = [ends.get(thing) or rng.choice(habits.places)]
        for _ in range(moved.count(thing)):
            back.append(rng.choice([place for place in habits.places if place != back[-1]]))
        way[thing] = back  # from the last place to the first
    start = tuple((thing, way[thing].pop()) for thing in order)
    return Story(start, tuple(Move(rng.choice(PEOPLE), thing, way[thing].pop()) for thing in moved))


def _say(thing: str, place: str) -> str:
    return f"The {thing} is in the {place}."

"""Stories of things in places, drawn so that nothing but reading tells whether a thing ended where it always does.

In every story that can be answered another thing, the rival, takes part. If the asked thing ends at its habitual
place (`aligned`), the rival ends at some other place; if not (`conflict`), the two are exchanged: the rival ends at
the asked thing's habitual place. All other places are drawn alike for all things, backwards from where a thing ends.
So the stories of both subsets have one distribution but for the names of asked thing and rival: which places are
mentioned, how often, in what order, and how often the asked thing moves says nothing about the subset.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from d2e_sft.data.sample import Subset
from data_builders.habit.words import PEOPLE


@dataclass(frozen=True)
class Habits:
    """The places of a world, and for each of its things the one where it habitually ends."""

    places: tuple[str, ...]
    habit: Mapping[str, str]

    @property
    def things(self) -> tuple[str, ...]:
        return tuple(self.habit)


@dataclass(frozen=True)
class Move:
    """Someone moves a thing; `place` is None where the thing is taken nobody says where."""

    person: str
    thing: str
    place: str | None

    def __str__(self) -> str:
        if self.place is None:
            return f"{self.person} takes the {self.thing} away."
        return f"{self.person} moves the {self.thing} to the {self.place}."


@dataclass(frozen=True)
class Story:
    """Where the things are at the start, in the order in which that is told, and how they are moved."""

    start: tuple[tuple[str, str], ...]
    moves: tuple[Move, ...]

    @property
    def text(self) -> str:
        return " ".join([*(_say(thing, place) for thing, place in self.start), *map(str, self.moves)])

    def about(self, thing: str) -> str:
        """The sentences that name a thing, and so all that its place depends on; empty if none does."""
        start = [_say(one, place) for one, place in self.start if one == thing]
        return " ".join([*start, *(str(move) for move in self.moves_of(thing))])

    def moves_of(self, thing: str) -> list[Move]:
        return [move for move in self.moves if move.thing == thing]

    @property
    def events(self) -> tuple[tuple[str, str | None], ...]:
        """The story without the names of those who move the things: what makes two stories the same."""
        return (*self.start, *((move.thing, move.place) for move in self.moves))


def draw_story(
    habits: Habits, asked: str, subset: Subset, rng: random.Random, *, things: int, moves: int
) -> tuple[Story, str | None]:
    """A story for a question about `asked`, and where that thing is at its end (None if the story does not say).

    Args:
        subset: `aligned`, `conflict`, `irrelevant` (the story is about other things) or `unanswerable` (at last the
            thing is taken nobody says where).
        things: how many things it is about, from 2 on.
        moves: how many moves it has; for `unanswerable` from 1 on.
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
    return _taken_away(story, asked), None


def _draw(habits: Habits, things: Sequence[str], ends: Mapping[str, str], moves: int, rng: random.Random) -> Story:
    """Things are told and moved in a random order; a thing ends where `ends` says, or anywhere, and never stays."""
    order = rng.sample(things, len(things))
    moved = [rng.choice(order) for _ in range(moves)]
    way = {}
    for thing in order:
        back = [ends.get(thing) or rng.choice(habits.places)]
        for _ in range(moved.count(thing)):
            back.append(rng.choice([place for place in habits.places if place != back[-1]]))
        way[thing] = back  # popped from its end: the last one is where the thing starts
    start = tuple((thing, way[thing].pop()) for thing in order)
    return Story(start, tuple(Move(rng.choice(PEOPLE), thing, way[thing].pop()) for thing in moved))


def _taken_away(story: Story, thing: str) -> Story:
    last = max(number for number, move in enumerate(story.moves) if move.thing == thing)
    moves = list(story.moves)
    moves[last] = Move(moves[last].person, thing, None)
    return Story(story.start, tuple(moves))


def _say(thing: str, place: str) -> str:
    return f"The {thing} is in the {place}."

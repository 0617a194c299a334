"""Stories of the habit task are possible, exactly refined, and have the same surface in both subsets."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean, stdev

import pytest

from d2e_sft.data.sample import Subset
from data_builders.habit.source import Story, World, draw_story

HABITS = World(
    ("barn", "garage", "kitchen", "garden", "attic", "cellar", "office"),
    {"key": "barn", "coin": "garage", "ring": "kitchen", "ball": "garden", "map": "attic"},
)
DRAWS = 3_000


def _draw(subset: Subset, number: int, things: int = 3, moves: int = 4) -> tuple[Story, str | None]:
    rng = random.Random(f"{subset}/{number}")
    return draw_story(HABITS, "key", subset, rng, things=things, moves=moves)


@pytest.mark.parametrize("subset", ["aligned", "conflict", "irrelevant", "unanswerable"])
def test_every_move_changes_the_place_of_a_thing(subset: Subset) -> None:
    for number in range(200):
        story, end = _draw(subset, number)
        now: dict[str, str | None] = dict(story.start)
        assert len(now) == len(story.start) == 3
        for move in story.moves:
            assert now[move.thing] not in (move.place, None)
            now[move.thing] = move.place
        assert ("key" in now) == (subset != "irrelevant")
        assert end == now.get("key")
        assert (end == "barn") == (subset == "aligned")
        assert (end is None) == (subset in ("irrelevant", "unanswerable"))


def test_the_text_about_a_thing_has_the_sentences_that_name_it() -> None:
    for number in range(200):
        story, _ = _draw("conflict", number)
        sentences = [f"{sentence}." for sentence in story.about().removesuffix(".").split(". ")]
        assert story.about("key").split(". ") == " ".join(s for s in sentences if " key " in s).split(". ")
        assert story.about("flute") == ""


def test_the_places_of_conflicts_are_uniform() -> None:
    ends = Counter(_draw("conflict", number)[1] for number in range(DRAWS))
    assert set(ends) == set(HABITS.places) - {"barn"}
    expected = DRAWS / 6
    assert all(abs(count - expected) < 4 * expected**0.5 for count in ends.values())


def _surface(story: Story) -> dict[str, float]:
    """Features of a story without the places of things; `barn` is the asked thing's habitual place."""
    places = [place for _, place in (*story.start, *((move.thing, move.place) for move in story.moves))]
    barns = [number for number, place in enumerate(places) if place == "barn"]
    return {
        "mentions of the habitual place": len(barns),
        "its first mention": barns[0],
        "its last mention": barns[-1],
        "the habitual place is the last one": places[-1] == "barn",
        "places": len(set(places)),
        "most mentions of a place": max(Counter(places).values()),
        "moves of the asked thing": sum(move.thing == "key" for move in story.moves),
        "sentence that names the asked thing last": max(
            [i for i, (thing, _) in enumerate(story.start) if thing == "key"]
            + [3 + i for i, move in enumerate(story.moves) if move.thing == "key"]
        ),
    }


@pytest.mark.parametrize(("things", "moves"), [(3, 4), (2, 3)])
def test_the_surface_does_not_reveal_the_subset(things: int, moves: int) -> None:
    seen = {
        subset: [_surface(_draw(subset, number, things, moves)[0]) for number in range(DRAWS)]
        for subset in ("aligned", "conflict")
    }
    for cue in seen["aligned"][0]:
        one, other = ([float(surface[cue]) for surface in surfaces] for surfaces in seen.values())
        error = ((stdev(one) ** 2 + stdev(other) ** 2) / DRAWS) ** 0.5
        assert abs(mean(one) - mean(other)) < 3.5 * error, cue

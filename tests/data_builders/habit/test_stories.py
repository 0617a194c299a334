"""Stories of the habit task: possible, exactly refined, and alike on the surface in both subsets."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean, stdev

import pytest

from d2e_sft.data.sample import Subset
from data_builders.habit.stories import Habits, Story, draw_story

HABITS = Habits(
    ("barn", "garage", "kitchen", "garden", "attic", "cellar", "office"),
    {"key": "barn", "coin": "garage", "ring": "kitchen", "ball": "garden", "map": "attic"},
)
DRAWS = 3_000


def _draw(subset: Subset, number: int, things: int = 3, moves: int = 4) -> tuple[Story, str | None]:
    rng = random.Random(f"{subset}/{number}")
    return draw_story(HABITS, "key", subset, rng, things=things, moves=moves)


@pytest.mark.parametrize("subset", ["aligned", "conflict", "irrelevant", "unanswerable"])
def test_a_thing_is_moved_from_where_it_is_and_never_to_where_it_is(subset: Subset) -> None:
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


def test_the_sentences_about_a_thing_are_those_that_name_it() -> None:
    for number in range(200):
        story, _ = _draw("conflict", number)
        sentences = [f"{sentence}." for sentence in story.text.removesuffix(".").split(". ")]
        assert story.about("key").split(". ") == " ".join(s for s in sentences if " key " in s).split(". ")
        assert story.about("flute") == ""


def test_the_place_of_a_conflict_is_any_other_alike() -> None:
    ends = Counter(_draw("conflict", number)[1] for number in range(DRAWS))
    assert set(ends) == set(HABITS.places) - {"barn"}
    expected = DRAWS / 6
    assert all(abs(count - expected) < 4 * expected**0.5 for count in ends.values())


def _surface(story: Story) -> dict[str, float]:
    """What can be seen of a story without knowing which thing is where; `barn` is the asked thing's habitual place."""
    places = [place for _, place in (*story.start, *((move.thing, move.place) for move in story.moves))]
    barns = [number for number, place in enumerate(places) if place == "barn"]
    return {
        "mentions of the habitual place": len(barns),
        "its first mention": barns[0],
        "its last mention": barns[-1],
        "the habitual place is the last one": places[-1] == "barn",
        "places": len(set(places)),
        "most mentions of a place": max(Counter(places).values()),
        "moves of the asked thing": len(story.moves_of("key")),
        "sentence that names the asked thing last": max(
            [i for i, (thing, _) in enumerate(story.start) if thing == "key"]
            + [3 + i for i, move in enumerate(story.moves) if move.thing == "key"]
        ),
    }


@pytest.mark.parametrize(("things", "moves"), [(3, 4), (2, 3)])
def test_nothing_on_the_surface_tells_aligned_from_conflict(things: int, moves: int) -> None:
    seen = {
        subset: [_surface(_draw(subset, number, things, moves)[0]) for number in range(DRAWS)]
        for subset in ("aligned", "conflict")
    }
    for cue in seen["aligned"][0]:
        one, other = ([float(surface[cue]) for surface in surfaces] for surfaces in seen.values())
        error = ((stdev(one) ** 2 + stdev(other) ** 2) / DRAWS) ** 0.5
        assert abs(mean(one) - mean(other)) < 3.5 * error, cue


def test_reading_which_thing_is_where_tells_them_apart() -> None:
    """The same comparison does find a difference where there is one."""
    last = {subset: [_draw(subset, n)[1] == "barn" for n in range(100)] for subset in ("aligned", "conflict")}
    assert (mean(last["aligned"]), mean(last["conflict"])) == (1, 0)

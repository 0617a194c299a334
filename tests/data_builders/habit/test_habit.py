"""The habit task: a model that uses the context is right in both subsets, one with habits only in one."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample, Subset
from data_builders.habit.source import KNOWN_HABITS, Story, World, draw_story
from tests.data_builders.reading import build_splits

Rows = dict[str, list[EventSample]]
WORLD = World(
    ("barn", "garage", "kitchen", "garden", "attic", "cellar", "office"),
    {"key": "barn", "coin": "garage", "ring": "kitchen", "ball": "garden", "map": "attic"},
)
DRAWS = 3_000


def _draw(subset: Subset, number: int, things: int = 3, moves: int = 4) -> tuple[Story, str | None]:
    rng = random.Random(f"{subset}/{number}")
    story, _, place = draw_story(WORLD, "key", subset, rng, things=things, moves=moves)
    return story, place


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
        sentences = [f"{sentence}." for sentence in story.about().removesuffix(".").split(". ")]
        assert story.about("key") == " ".join(sentence for sentence in sentences if " key " in sentence)
        assert story.about("flute") == ""


def _surface(story: Story) -> dict[str, float]:
    """Features of a story without the places of things; `barn` is the asked thing's habitual place."""
    places = [place for _, place in (*story.start, *((move.thing, move.place) for move in story.moves))]
    things = [thing for thing, _ in (*story.start, *((move.thing, move.place) for move in story.moves))]
    barns = [number for number, place in enumerate(places) if place == "barn"]
    return {
        "mentions of the habitual place": len(barns),
        "its first mention": barns[0],
        "its last mention": barns[-1],
        "the habitual place is the last one": places[-1] == "barn",
        "places": len(set(places)),
        "most mentions of a place": max(Counter(places).values()),
        "sentences that name the asked thing": things.count("key"),
        "the last of them": max(number for number, thing in enumerate(things) if thing == "key"),
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
    ends = Counter(_draw("conflict", number, things, moves)[1] for number in range(DRAWS))
    assert set(ends) == set(WORLD.places) - {"barn"}
    assert all(abs(count - DRAWS / 6) < 4 * (DRAWS / 6) ** 0.5 for count in ends.values()), "uniform"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    settings = ("test_samples=300", "train_samples=320", "strength=0.95")
    return build_splits(tmp_path_factory.mktemp("habit"), "habit", *settings)


def _accuracy(samples: list[EventSample], answer: Callable[[EventSample], str]) -> dict[str, float]:
    """Percent right by subset."""
    right: dict[str, list[bool]] = {}
    for sample in samples:
        right.setdefault(str(sample.subset), []).append(answer(sample) in sample.answers)
    return {subset: 100 * sum(found) / len(found) for subset, found in right.items()}


def _places(context: str | None, thing: str = "") -> list[str]:
    return re.findall(rf"[Tt]he {thing or '[a-z]+'} (?:is in|to) the (\w+)\.", context or "")


def test_using_the_context_is_right_in_both_subsets_and_a_learnt_place_in_one(rows: Rows) -> None:
    seen: dict[str, Counter[str]] = {}
    for sample in rows["train"]:
        seen.setdefault(sample.question, Counter())[sample.answers[0]] += 1
    learnt = {question: places.most_common(1)[0][0] for question, places in seen.items()}
    for samples in rows.values():
        for sample in samples:
            thing = re.fullmatch(r"Where is the (\w+) now\?", sample.question)[1]
            for text in (sample.context, sample.refined_context):
                assert _places(text, thing)[-1:] == sample.answers
            assert sample.habit == [learnt[sample.question]]
            assert sample.habit[0] in _places(sample.context), "even if it is not the answer"
    assert _accuracy(rows["test"], lambda s: learnt[s.question]) == {"aligned": 100, "conflict": 0}


def test_no_story_occurs_twice_and_all_things_are_asked_for_equally_often(rows: Rows) -> None:
    samples = [sample for split in rows.values() for sample in split]
    stories = {re.sub(r"[A-Z]\w+ moves", "moves", sample.context) for sample in samples}
    assert len(stories) == len(samples) == 920
    asked = Counter((sample.split, sample.question) for sample in samples)
    assert {count for (split, _), count in asked.items() if split == "test"} == {100}
    assert {count for (split, _), count in asked.items() if split == "train"} == {53, 54}


@pytest.mark.parametrize(("strength", "aligned"), [(0, 0), (0.5, 100), (0.95, 190), (1, 200)])
def test_the_strength_of_the_habit_is_exact(tmp_path: Path, strength: float, aligned: int) -> None:
    samples = build_splits(tmp_path, "habit", f"strength={strength}", "train_samples=200", "test_samples=1")["train"]
    subsets = ["aligned" if sample.answers == sample.habit else "conflict" for sample in samples]
    assert [sample.subset for sample in samples] == subsets
    assert subsets.count("aligned") == aligned
    assert len(set(subsets[:40])) == (2 if 0 < aligned < 200 else 1), "in random order"


def test_the_test_is_the_same_for_every_strength_and_training_set(tmp_path: Path) -> None:
    one = build_splits(tmp_path / "one", "habit", "strength=0.5", "train_samples=10", "test_samples=20")
    more = ("strength=0.9", "train_samples=30", "test_samples=20", "train_unanswerable=5")
    assert one["test"] == build_splits(tmp_path / "other", "habit", *more)["test"]


def test_short_stories_dev_rows_and_unanswerable_rows(tmp_path: Path) -> None:
    found = build_splits(
        tmp_path, "habit", "things_per_story=2", "moves=3", "train_samples=20", "dev_samples=4", "test_samples=6",
        "train_unanswerable=3", "test_unanswerable=5", "test_irrelevant=7",
    )  # fmt: skip
    counts = {split: dict(Counter(sample.subset for sample in samples)) for split, samples in found.items()}
    assert counts == {
        "train": {"aligned": 19, "conflict": 1, "unanswerable": 3},
        "dev": {"aligned": 4, "conflict": 4},
        "test": {"aligned": 6, "conflict": 6, "unanswerable": 5, "irrelevant": 7},
    }
    for sample in found["test"]:
        thing = sample.meta["thing"]
        assert sample.context.count(". ") == 4
        if sample.subset == "irrelevant":
            assert thing not in sample.context
            assert (sample.answers, sample.refined_context) == (sample.habit, "")
        elif sample.subset == "unanswerable":
            assert sample.answers[0] == "unknown"
            assert (sample.refined_context or "").endswith(f" takes the {thing} away.")
    splits = read_manifest(tmp_path)["datasets"]["habit"]["splits"]
    assert splits["train"]["rows_by_subset"] == counts["train"]


def test_in_questions_of_order_only_reading_tells_the_answer(tmp_path: Path) -> None:
    found = build_splits(
        tmp_path, "habit", "ask=order", "strength=0.9", "things_per_story=2", "moves=2", "train_samples=200",
        "test_samples=150",
    )  # fmt: skip
    learnt = {sample.meta["thing"]: sample.habit[0] for sample in found["train"]}
    assert set(learnt.values()) == {"yes", "no"}
    assert Counter(sample.subset for sample in found["train"]) == {"aligned": 180, "conflict": 20}
    first_named: dict[str, list[bool]] = {"aligned": [], "conflict": []}
    for sample in (*found["train"], *found["test"]):
        asked = re.fullmatch(r"Was the (\w+) in the (\w+) before it was in the (\w+)\?", sample.question)
        visited = _places(sample.refined_context, asked[1])
        assert all(visited.count(place) == 1 for place in asked.groups()[1:])
        order = "yes" if visited.index(asked[2]) < visited.index(asked[3]) else "no"
        assert sample.answers == [order]
        assert (order == learnt[asked[1]]) == (sample.subset == "aligned")
        assert sample.habit == [learnt[asked[1]]]
        if sample.split == "test":
            first_named[str(sample.subset)].append(sample.context.count(asked[2]) > sample.context.count(asked[3]))
    assert abs(mean(first_named["aligned"]) - mean(first_named["conflict"])) < 0.15, "nor do the counts of the places"


def test_a_habit_that_pretrained_models_have(tmp_path: Path) -> None:
    found = build_splits(tmp_path, "habit", "prior=pretrained", "places=12", "things=8", "train_samples=40")
    for sample in (*found["train"], *found["test"]):
        assert sample.habit == [KNOWN_HABITS[sample.meta["thing"]]]
    assert len({sample.question for sample in found["test"]}) == 8
    assert len(set(KNOWN_HABITS.values())) == len(KNOWN_HABITS)

"""Habit: where is a thing now, if it nearly always ends at the same place? Generated, nothing to download.

In training a thing ends at its habitual place in a share `strength` of the samples, so answering question → place by
habit is mostly right. The test has as many `aligned` samples (it ends there) as `conflict` samples (it does not). A
model that uses the context is right in both, one that answers by habit only in the first. The refined context is
exact: the sentences that name the thing. No two samples share a story, apart from the names of people. Habits and test
are the same for every `strength` and every training set.

Only reading reveals whether a thing ended at its habitual place. Every answerable story has a second thing, the rival.
If the asked thing ends at its habitual place (`aligned`), the rival ends at another place. Otherwise (`conflict`) the
rival ends at the asked thing's habitual place. All other places are drawn in the same way for all things, backwards
from the end. So the stories of both subsets have one distribution, apart from the names of asked thing and rival. The
places, their number and order, and the number of moves do not reveal the subset.

With `ask=order` the same stories are asked whether a thing was at one place before it was at another. Each thing has a
habitual answer, yes or no. The subset decides only in which order the question names the two places.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from d2e_sft.data.sample import EventSample, Split, Subset
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_package_yaml
from data_builders.raw.source import MOST_SAMPLES, SPLITS, Job, SourceOptions, SplitRows, SplitSamples, source

_WORDS = load_package_yaml(Path(__file__).with_name("words.yaml"))
THINGS, PLACES, PEOPLE = (tuple[str, ...](_WORDS[name].split()) for name in ("things", "places", "people"))
KNOWN_HABITS: dict[str, str] = _WORDS["known_habits"]
ORDERS = ("yes", "no")
_PATIENCE = 2_000  # repeated stories in a row before the generator gives up


class HabitOptions(SourceOptions):
    """Options of the generator; on the command line `habit.NAME=VALUE`.

    Attributes:
        ask: `place`, where a thing is now, or `order`, which of two of its places came first. Rows of `order` are
            answered by yes or no and cannot be swapped.
        things: Number of things in questions.
        places: Number of their possible places.
        strength: Share of the training samples in which the thing in question ends at its habitual place.
        prior: `new` draws the habits with the seed; `pretrained` takes things whose usual place a pretrained model
            knows (plate → kitchen).
        dev_samples, test_samples: Aligned samples, and as many conflict samples.
        train_unanswerable, test_unanswerable: Additional samples in which the thing is taken away; their answer is
            `unknown`.
        test_irrelevant: Additional test samples whose story does not name the thing; their answer is the habit.
        seed: Overrides the build's seed.
    """

    ask: Literal["place", "order"] = "place"
    things: int = Field(6, ge=2)
    places: int = Field(10, ge=2)
    things_per_story: int = Field(4, ge=2)
    moves: int = Field(6, ge=0, le=1_000)
    strength: float = Field(0.95, ge=0, le=1)
    prior: Literal["new", "pretrained"] = "new"
    train_samples: int = Field(320, ge=0, le=MOST_SAMPLES)
    dev_samples: int = Field(0, ge=0, le=MOST_SAMPLES)
    test_samples: int = Field(100, ge=0, le=MOST_SAMPLES)
    train_unanswerable: int = Field(0, ge=0, le=MOST_SAMPLES)
    test_unanswerable: int = Field(0, ge=0, le=MOST_SAMPLES)
    test_irrelevant: int = Field(0, ge=0, le=MOST_SAMPLES)
    seed: int | None = None

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        known = self.prior == "pretrained"
        places, things = (len(KNOWN_HABITS),) * 2 if known else (len(PLACES), len(THINGS))
        for name, most, why in (
            ("places", places, f"all there are with prior={self.prior}"),
            ("things", min(things, self.places), "each has a habitual place of its own"),
            ("things_per_story", self.things, "the number of things"),
        ):
            if getattr(self, name) > most:
                raise ValueError(f"{name}: got {getattr(self, name)}; expected at most {most} ({why})")
        if self.test_irrelevant and self.things_per_story == self.things:
            raise ValueError(
                f"test_irrelevant: got {self.test_irrelevant}, but every story is about all {self.things} things; "
                "expected things_per_story below things"
            )
        if (self.train_unanswerable or self.test_unanswerable) and not self.moves:
            raise ValueError("train_unanswerable, test_unanswerable: expected 0 if moves is 0")
        if self.ask == "order":
            if self.train_unanswerable or self.test_unanswerable or self.test_irrelevant or self.prior != "new":
                raise ValueError("ask=order: expected no unanswerable and irrelevant samples, and prior=new")
            if not self.moves:
                raise ValueError("ask=order: got moves 0; expected at least 1, so that a thing has two places")
        if not any(self.wanted(split) for split in SPLITS):
            raise ValueError("train_samples, dev_samples and test_samples are all 0; expected a sample to draw")
        return self

    def wanted(self, split: Split) -> list[Subset]:
        """The subset of each sample of a split, subset by subset."""
        if split == "train":
            aligned = round(self.strength * self.train_samples)
            counts: dict[Subset, int] = {
                "aligned": aligned,
                "conflict": self.train_samples - aligned,
                "unanswerable": self.train_unanswerable,
            }
        else:
            per_subset = self.test_samples if split == "test" else self.dev_samples
            counts = {"aligned": per_subset, "conflict": per_subset}
            if split == "test":
                counts |= {"irrelevant": self.test_irrelevant, "unanswerable": self.test_unanswerable}
        return [subset for subset, count in counts.items() for _ in range(count)]


class World(NamedTuple):
    """The places of a world, and the habitual answer of each of its things: a place, or yes or no with `ask=order`."""

    places: tuple[str, ...]
    habits: Mapping[str, str]


class Move(NamedTuple):
    """Someone moves a thing; `place` is missing if it is unknown."""

    person: str
    thing: str
    place: str | None

    def __str__(self) -> str:
        if self.place is None:
            return f"{self.person} takes the {self.thing} away."
        return f"{self.person} moves the {self.thing} to the {self.place}."


class Story(NamedTuple):
    """The first place of each thing, in the order of the story, and the moves."""

    start: tuple[tuple[str, str], ...]
    moves: tuple[Move, ...]

    def about(self, thing: str | None = None) -> str:
        """Return the sentences that name a thing, on which its place depends; without a thing the whole story."""
        start = [f"The {name} is in the {place}." for name, place in self.start if thing in (None, name)]
        return " ".join([*start, *(str(move) for move in self.moves if thing in (None, move.thing))])

    @property
    def events(self) -> tuple[tuple[str, str | None], ...]:
        """The story without the names of people; two stories with equal events are the same."""
        return (*self.start, *((move.thing, move.place) for move in self.moves))


def read(job: Job) -> SplitSamples:
    """Generate all splits, the test first, so that it does not depend on the others; UserError for too few stories."""
    options: HabitOptions = job.options
    seed = job.seed if options.seed is None else options.seed
    world = _draw_world(options, random.Random(f"{seed}/habit"))
    seen: set[object] = set()
    samples: SplitSamples = {}
    for split in reversed(SPLITS):
        if subsets := options.wanted(split):
            drawn = _samples(job, split, subsets, world, seen, random.Random(f"{seed}/habit/{split}"))
            samples[split] = SplitRows(list(drawn))
    return {split: samples[split] for split in SPLITS if split in samples}


def _draw_world(options: HabitOptions, rng: random.Random) -> World:
    if options.prior == "pretrained":
        things = rng.sample(sorted(KNOWN_HABITS), options.things)
        rest = rng.sample(sorted(set(KNOWN_HABITS) - set(things)), options.places - options.things)
        places = [KNOWN_HABITS[thing] for thing in (*things, *rest)]
    else:
        places = rng.sample(PLACES, options.places)
        things = rng.sample(THINGS, options.things)
    answers = itertools.cycle(ORDERS) if options.ask == "order" else places
    return World(tuple(places), dict(zip(things, answers, strict=False)))


def _samples(
    job: Job, split: Split, subsets: list[Subset], world: World, seen: set[object], rng: random.Random
) -> Iterator[EventSample]:
    """One sample for each wanted subset, in random order; each thing is asked for equally often in each subset."""
    options: HabitOptions = job.options
    draw = draw_order if options.ask == "order" else draw_story
    turns = itertools.cycle(rng.sample(list(world.habits), len(world.habits)))
    questions = [(next(turns), subset) for subset in subsets]
    rng.shuffle(questions)
    for number, (thing, subset) in enumerate(questions):
        for _ in range(_PATIENCE):
            story, question, answer = draw(
                world, thing, subset, rng, things=options.things_per_story, moves=options.moves
            )
            if story.events not in seen:
                break
        else:
            raise UserError(
                f"habit: found no further story after {_PATIENCE:,} draws ({split}: {number:,} of {len(subsets):,}); "
                "no two samples share a story",
                remedy="ask for fewer samples, or raise habit.moves, habit.places or habit.things_per_story",
            )
        seen.add(story.events)
        habit, numops = world.habits[thing], sum(move.thing == thing for move in story.moves)
        answers = {"irrelevant": [habit], "unanswerable": ["unknown", "not known", "unanswerable"]}
        yield EventSample(
            id=f"habit-{split}-{number}",
            dataset="habit",
            split=split,
            relation="temporal",
            format="qa",
            context=story.about(),
            refined_context=story.about(thing),
            question=question,
            answers=answers.get(subset, [str(answer)]),
            subset=subset,
            habit=[habit],
            meta={"thing": thing, "numops": numops, "moves": len(story.moves), "licence": job.source.licence},
        )


def draw_story(
    world: World, subject: str, subset: Subset, rng: random.Random, *, things: int, moves: int
) -> tuple[Story, str, str | None]:
    """Draw a story for the question where a thing is; return story, question and last place (None if it is unknown).

    Args:
        subset: `aligned`, `conflict`, `irrelevant` (the story is about other things) or `unanswerable` (in the end the
            thing is taken to an unknown place).
        things: The number of things in the story, at least 2.
        moves: The number of moves, at least 1 for `unanswerable`.
    """
    question = f"Where is the {subject} now?"
    strangers = [thing for thing in world.habits if thing != subject]
    if subset == "irrelevant":
        return _draw(world, rng.sample(strangers, things), {}, moves, rng), question, None
    companions = rng.sample(strangers, things - 1)
    rival, habitual = rng.choice(companions), world.habits[subject]
    elsewhere = rng.choice([place for place in world.places if place != habitual])
    ends = {subject: habitual, rival: elsewhere} if subset == "aligned" else {subject: elsewhere, rival: habitual}
    story = _draw(world, [subject, *companions], ends, moves, rng)
    if subset != "unanswerable":
        return story, question, ends[subject]
    while not (places := [number for number, move in enumerate(story.moves) if move.thing == subject]):
        story = _draw(world, [subject, *companions], ends, moves, rng)
    changed = list(story.moves)
    changed[places[-1]] = changed[places[-1]]._replace(place=None)
    return Story(story.start, tuple(changed)), question, None


def draw_order(
    world: World, subject: str, subset: Subset, rng: random.Random, *, things: int, moves: int
) -> tuple[Story, str, str]:
    """Draw a story, and whether the asked thing was at one of its places before another; return question and answer.

    The story does not depend on the subset. The thing is at each of the two places once.
    """
    strangers = [thing for thing in world.habits if thing != subject]
    visits: list[str] = []
    while len(visits) < 2:
        story = _draw(world, [subject, *rng.sample(strangers, things - 1)], {}, moves, rng)
        places = [str(place) for thing, place in story.events if thing == subject]
        visits = [place for place in places if places.count(place) == 1]
    first, second = sorted(rng.sample(range(len(visits)), 2))
    habit = world.habits[subject]
    answer = habit if subset == "aligned" else next(order for order in ORDERS if order != habit)
    before, after = (first, second) if answer == "yes" else (second, first)
    return story, f"Was the {subject} in the {visits[before]} before it was in the {visits[after]}?", answer


def _draw(world: World, things: Sequence[str], ends: Mapping[str, str], moves: int, rng: random.Random) -> Story:
    """A story with things and moves in random order; a thing ends at its place in `ends`, or anywhere."""
    order = rng.sample(things, len(things))
    moved = [rng.choice(order) for _ in range(moves)]
    places = {}
    for thing in order:
        back = [ends.get(thing) or rng.choice(world.places)]
        for _ in range(moved.count(thing)):
            back.append(rng.choice([place for place in world.places if place != back[-1]]))
        places[thing] = back  # from the last place to the first
    start = tuple((thing, places[thing].pop()) for thing in order)
    return Story(start, tuple(Move(rng.choice(PEOPLE), thing, places[thing].pop()) for thing in moved))


HABIT = source(Path(__file__).with_name("habit"), read, HabitOptions)

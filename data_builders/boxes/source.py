"""Boxes (Kim & Schuster, ACL 2023): what does a box contain after some operations? Generated, nothing to download.

The refined context is exact: the box's initial contents and the operations that touch it.

By default each scenario gives one question or a few. With `scenarios`, every box is asked for after every number of
operations, as in the published data: 2,200 scenarios of 91 questions. Train, dev and test share no signature (number
of things in each box at the start).

The variants are the published ways to separate training from evaluation (section 5.1). Evaluation uses the base task,
except in `move_contents` and `ambiref`.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from d2e_sft.data.conversation import CONTEXT, Conversation, Turn
from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.errors import UserError
from data_builders.boxes.world import (
    MASK,
    OBJECTS,
    RARE_OBJECTS,
    BoxWorld,
    Scenario,
    State,
    Wording,
    ambiguous_names,
    in_words_of_t5,
    refined_context,
)
from data_builders.raw.source import MOST_SAMPLES, Job, SourceOptions, SplitRows, SplitSamples, source

Variant = Literal["base", "numops", "vocab", "altforms", "altforms_numops", "move_contents", "ambiref"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
_TRAIN_OPERATIONS = 2
# Useless draws in a row before the generator gives up.
_PATIENCE = 20_000


def _side(variant: Variant, split: Split, common: BoxWorld) -> tuple[BoxWorld, Wording]:
    """The world and the wording of a split's scenarios; `common` is the world of the base task."""
    if variant in ("move_contents", "ambiref"):
        return common, Wording(move_contents=variant == "move_contents", omit_modifiers=variant == "ambiref")
    if split != "train":
        return common, Wording()
    world = common
    if variant in ("numops", "altforms_numops"):
        world = replace(world, operations=min(world.operations, _TRAIN_OPERATIONS))
    names = dict(zip(OBJECTS, RARE_OBJECTS, strict=True)) if variant not in ("base", "numops") else {}
    return world, Wording(variant in ("altforms", "altforms_numops"), names=names)


@dataclass
class Need:
    """The number of samples or scenarios that a split needs and has."""

    total: int
    taken: int = 0

    @property
    def open_share(self) -> float:
        return 1 - self.taken / self.total if self.total else 0.0


@dataclass(frozen=True)
class Drawn:
    """A scenario with its split, its wording and its number, which counts from 0 over all splits."""

    number: int
    split: Split
    scenario: Scenario
    wording: Wording


def scenario_random(seed: int) -> random.Random:
    """Return the generator of all draws, so that training rows and benchmark files of a seed share scenarios."""
    return random.Random(f"{seed}/boxes")


def needs(train: int, dev: int, test: int) -> dict[Split, Need]:
    """Return the needs of the splits that need anything."""
    totals: dict[Split, int] = {"train": train, "dev": dev, "test": test}
    return {split: Need(total) for split, total in totals.items() if total}


def whole_scenarios(count: int) -> dict[Split, Need]:
    """Return the needs of a number of scenarios in the published proportions, 0.45/0.10/0.45."""
    train, dev = round(count * 0.45), round(count * 0.10)
    return needs(train, dev, count - train - dev)


def draw_scenarios(
    world: BoxWorld,
    split_needs: dict[Split, Need],
    rng: random.Random,
    *,
    variant: Variant,
) -> Iterator[Drawn]:
    """Yield scenarios until every split has what it needs; the caller increases `taken` for each scenario.

    A new signature goes to the split that lacks most, by share. So all splits get common and rare ones, and fill up
    exactly. No initial state is used twice. UserError if the world is too small for the needs.
    """
    owner: dict[tuple[int, ...], Split] = {}
    seen: set[State] = set()
    sides = {split: _side(variant, split, world) for split in split_needs}
    idle = 0
    while any(need.open_share > 0 for need in split_needs.values()):
        start = world.initial_state(rng)
        signature = tuple(len(contents) for contents in start)
        split = owner.setdefault(signature, max(split_needs, key=lambda name: split_needs[name].open_share))
        taken = split_needs[split].taken
        if start not in seen and split_needs[split].open_share > 0:
            its_world, wording = sides[split]
            scenario = its_world.play(start, rng)
            if variant == "ambiref":  # each scenario has its own names, and several of these share a noun
                wording = replace(wording, names=ambiguous_names(world.objects, rng))
            yield Drawn(len(seen), split, scenario, wording)
            seen.add(start)
        idle = 0 if split_needs[split].taken > taken else idle + 1
        if idle > _PATIENCE:
            state = ", ".join(f"{split} {need.taken:,} of {need.total:,}" for split, need in split_needs.items())
            raise UserError(
                f"boxes: found no further initial state after {_PATIENCE:,} draws ({state}); the splits share no "
                "signature and no initial state is used twice",
                remedy="ask for fewer samples, or raise boxes.boxes or boxes.max_objects",
            )


class BoxesSourceOptions(SourceOptions):
    """Options of the generator; on the command line `boxes.NAME=VALUE`.

    Attributes:
        expected_objects: Mean number of things in a box at the start, before clipping at `max_objects`.
        changed_share: Share of the drawn questions whose box was changed at least once; None draws uniformly over
            numbers of operations and boxes, which leaves many boxes unchanged.
        scenarios: Ask everything about this many scenarios instead of drawing questions.
        form: `question` asks `What does Box 0 contain?`. `t5` is the form in which the paper fine-tunes T5: the prompt
            ends in a masked statement, and the answer fills it in.
        variant: A published way to separate training from evaluation; see the module.
        seed: Overrides the build's seed.
    """

    boxes: int = Field(7, ge=1, le=100)
    max_objects: int = Field(3, ge=1)
    expected_objects: float = Field(2.0, gt=0, le=100)
    operations: int = Field(12, ge=0, le=1_000)
    train_samples: int = Field(2_000, ge=0, le=MOST_SAMPLES)
    dev_samples: int = Field(0, ge=0, le=MOST_SAMPLES)
    test_samples: int = Field(500, ge=0, le=MOST_SAMPLES)
    questions_per_scenario: int = Field(1, ge=1)
    changed_share: float | None = Field(None, ge=0, le=1)
    scenarios: int | None = Field(None, ge=1, le=10_000)
    form: Literal["question", "t5"] = "question"
    variant: Variant = "base"
    seed: int | None = None

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        drawing = {"train_samples", "dev_samples", "test_samples", "questions_per_scenario"}
        conflicting = sorted((drawing | {"changed_share"}) & self.model_fields_set)
        if self.scenarios is not None and conflicting:
            raise ValueError(f"scenarios asks every question, so it cannot be combined with {', '.join(conflicting)}")
        if self.boxes * self.max_objects > len(OBJECTS):
            raise ValueError(
                f"boxes × max_objects: got {self.boxes} × {self.max_objects}; expected at most {len(OBJECTS)}, "
                "the number of different objects"
            )
        if self.changed_share and self.operations == 0:
            raise ValueError(f"changed_share: got {self.changed_share}; expected 0 if operations is 0")
        if self.scenarios is None and not self.needs():
            raise ValueError("train_samples, dev_samples and test_samples are all 0; expected a sample to draw")
        return self

    def needs(self) -> dict[Split, Need]:
        """The samples, or whole scenarios, that each split needs."""
        if self.scenarios is not None:
            return whole_scenarios(self.scenarios)
        return needs(self.train_samples, self.dev_samples, self.test_samples)


class _Question(NamedTuple):
    box: int
    after: int  # number of operations done
    numops: int


def read(job: Job) -> SplitSamples:
    """Generate all splits; UserError if the world is too small for the wanted samples."""
    options: BoxesSourceOptions = job.options
    rng = scenario_random(job.seed if options.seed is None else options.seed)
    world = BoxWorld(options.boxes, options.max_objects, options.expected_objects, options.operations, OBJECTS)
    split_needs = options.needs()
    samples: dict[Split, list[EventSample]] = {split: [] for split in split_needs}
    for drawn in draw_scenarios(world, split_needs, rng, variant=options.variant):
        need = split_needs[drawn.split]
        questions = _questions(drawn.scenario, options.boxes)
        if options.scenarios is None:
            left = min(options.questions_per_scenario, need.total - need.taken)
            questions = _draw(questions, options, need.taken, left, rng)
        need.taken += 1 if options.scenarios is not None else len(questions)
        samples[drawn.split] += _samples(drawn, questions, job.source.licence, options.form)
    return {split: SplitRows(rows) for split, rows in samples.items()}


def _questions(scenario: Scenario, boxes: int) -> list[_Question]:
    """Every box after every number of operations: boxes × (operations + 1) questions."""
    numops = [0] * boxes
    questions = [_Question(box, 0, 0) for box in range(boxes)]
    for after, operation in enumerate(scenario.operations, start=1):
        for box in range(boxes):
            numops[box] += operation.touches(box)
            questions.append(_Question(box, after, numops[box]))
    return questions


def _draw(
    questions: list[_Question], options: BoxesSourceOptions, taken: int, count: int, rng: random.Random
) -> list[_Question]:
    """Up to `count` different questions; `taken` is how many the split has, which keeps `changed_share` exact."""
    left = list(questions)
    drawn: list[_Question] = []
    while len(drawn) < count:
        fitting = left
        if options.changed_share is not None:
            done = taken + len(drawn)
            # A running quota: of the first n questions, floor(n × share) are about changed boxes. The product may be
            # slightly too small: 100 × 0.29 is less than 29.
            before, after = (math.floor(n * options.changed_share + 1e-9) for n in (done, done + 1))
            fitting = [question for question in left if (question.numops > 0) == (after > before)]
        if not fitting:
            break
        question = rng.choice(fitting)
        left.remove(question)
        drawn.append(question)
    return drawn


def _samples(drawn: Drawn, questions: list[_Question], licence: str, form: str) -> Iterator[EventSample]:
    scenario, wording = drawn.scenario, drawn.wording
    opening = wording.state(enumerate(scenario.states[0]))
    sentences = wording.sentences(scenario)
    signature = "-".join(map(str, scenario.signature))
    for question in questions:
        contents = scenario.states[question.after][question.box]
        parts = {
            "format": "qa",
            "context": " ".join([opening, *sentences[: question.after]]),
            "refined_context": refined_context(scenario, wording, question.box, question.after),
            "question": f"What does {wording.name(question.box)} contain?",
            "answers": [wording.say(contents)],
        }
        if form == "t5":
            parts = _for_t5(parts, wording.name(question.box), wording.clause(contents))
        yield EventSample(
            id=f"boxes-{drawn.split}-{drawn.number}-{question.after}-{question.box}",
            dataset="boxes",
            split=drawn.split,
            relation="temporal",
            **parts,
            meta={
                "scenario": drawn.number,
                "box": question.box,
                "operations": question.after,
                "numops": question.numops,
                "signature": signature,
                "licence": licence,
            },
        )


def _for_t5(parts: dict[str, Any], box: str, answer: str) -> dict[str, Any]:
    """Return the fields of a question in the form for fine-tuning T5: the answer fills in a masked statement."""
    masked = f"{box} {MASK} ."
    turns = [Turn(role="user", content=masked)]
    return {
        "format": "chat",
        "context": in_words_of_t5(parts["context"]),
        "refined_context": in_words_of_t5(parts["refined_context"]),
        "question": masked,
        "answers": [f"{MASK} {answer}"],
        "conversation": Conversation(turns=turns, context_turn=0, context_block=f"{CONTEXT} "),
    }


BOXES = source(Path(__file__).with_name("boxes"), read, BoxesSourceOptions)

# Rows of the published files: every box after every number of operations. There are two formats. For prompting
# (`few_shot`) an empty box `contains nothing`, and the mask replaces the words after `contains`. For fine-tuning T5
# (`t5`) it `is empty`, and the mask also replaces `contains`.

RowFormat = Literal["few_shot", "t5"]
_WORLD = BoxWorld(boxes=7, max_objects=3, expected_objects=2.0, operations=12, objects=OBJECTS)


def official_rows(
    variant: Variant, *, scenarios: int, seed: int, row_format: RowFormat
) -> Iterator[tuple[Split, dict[str, Any]]]:
    """Yield (split, row) for each question, in the published order: by scenario, number of operations and box.

    `sample_id` counts scenarios over all splits, as in the published files. The build option `boxes.scenarios=N` makes
    training rows of the same scenarios.
    """
    rng = scenario_random(seed)
    split_needs = whole_scenarios(scenarios)
    for drawn in draw_scenarios(_WORLD, split_needs, rng, variant=variant):
        for row in _rows(drawn, row_format):
            yield drawn.split, row
        split_needs[drawn.split].taken += 1


def _rows(drawn: Drawn, row_format: RowFormat) -> Iterator[dict[str, Any]]:
    scenario, wording = drawn.scenario, drawn.wording
    text = wording.state(enumerate(scenario.states[0]))
    if row_format == "t5":
        text = in_words_of_t5(text)
    kinds: list[Counter[str]] = [Counter(move=0, remove=0, put=0) for _ in scenario.states[0]]
    sentences = ["", *wording.sentences(scenario)]
    for after, state in enumerate(scenario.states):
        if after:
            operation = scenario.operations[after - 1]
            text = f"{text} {sentences[after]}"
            for box in {operation.source, operation.target} - {-1}:
                kinds[box][operation.kind] += 1
        for box, contents in enumerate(state):
            begin, answer = f"{text} {wording.name(box)} contains", wording.say(contents)
            if row_format == "t5":
                begin = f"{text} {wording.name(box)}"
                answer = wording.clause(contents)
            yield {
                "sentence": f"{begin} {answer}.",
                "sentence_masked": f"{begin} {MASK} .",
                "masked_content": f"{MASK} {answer}",
                "sample_id": drawn.number,
                "numops": kinds[box].total(),
                "numops_by_op": dict(kinds[box]),
            }

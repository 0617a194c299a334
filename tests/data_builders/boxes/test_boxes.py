"""The Boxes generator against the text and the published proportions, its variants, and the published files."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from scipy import stats

from d2e_sft.data.sample import EventSample
from data_builders.boxes.source import VARIANTS, Variant, official_rows
from data_builders.boxes.world import OBJECTS, RARE_OBJECTS, BoxWorld, Scenario, ambiguous_names
from tests.data_builders.boxes.simulation import contents_by_text, scenarios, things_in
from tests.data_builders.reading import build_splits


def test_the_answer_and_the_refined_context_follow_from_the_text() -> None:
    for sample in scenarios(60)["train"]:
        box = f"Box {sample.meta['box']}"
        contents = contents_by_text(sample.context, strict=True)
        assert all(len(held) <= 3 for held in contents.values())
        assert sample.answers == [
            " and ".join(f"the {thing}" for thing in sorted(contents[str(sample.meta["box"])])) or "nothing"
        ]
        assert sample.question == f"What does {box} contain?"
        opening, *operations = sample.context.removesuffix(".").split(". ")
        assert len(operations) == sample.meta["operations"]
        assert all(re.findall(r"the (\w+)", part) == sorted(things_in(part)) for part in operations)
        clause = next(clause for clause in opening.split(", ") if clause.startswith(f"{box} "))
        touching = [sentence for sentence in operations if re.search(rf"{box}\b", sentence)]
        assert sample.refined_context == ". ".join([clause, *touching]) + "."
        assert sample.meta["numops"] == len(touching)


def test_splits_have_the_published_proportions_and_share_no_signature_or_initial_state() -> None:
    sizes = {split: len(rows) / 91 for split, rows in scenarios(60).items()}  # questions of a whole scenario
    assert sizes == {"train": 27, "dev": 6, "test": 27}
    starts: dict[str, set[int]] = {}
    signatures: dict[str, set[str]] = {}
    for split, samples in scenarios(60).items():
        for sample in samples:
            opening = sample.context.split(". ")[0].removesuffix(".")
            starts.setdefault(opening, set()).add(sample.meta["scenario"])
            held = [str(len(things_in(clause))) for clause in opening.split(", ")]
            assert sample.meta["signature"] == "-".join(held)
            signatures.setdefault(sample.meta["signature"], set()).add(split)
    assert all(len(numbers) == 1 for numbers in starts.values())
    assert all(len(splits) == 1 for splits in signatures.values())


def test_the_options_set_the_size_of_the_world_and_of_the_splits(tmp_path: Path) -> None:
    settings = ("boxes=3", "operations=2", "train_samples=40", "dev_samples=5", "test_samples=11")
    drawn = build_splits(tmp_path, "boxes", *settings)
    assert {split: len(samples) for split, samples in drawn.items()} == {"train": 40, "dev": 5, "test": 11}
    assert all(s.context.count("Box") >= 3 and s.meta["operations"] <= 2 for s in drawn["train"])
    assert len({s.meta["scenario"] for s in drawn["train"]}) == 40


@pytest.mark.parametrize("share", [0.0, 0.29, 1.0])
def test_changed_share_is_exact(tmp_path: Path, share: float) -> None:
    settings = ("train_samples=100", "test_samples=0", "questions_per_scenario=3", f"changed_share={share}")
    drawn = build_splits(tmp_path, "boxes", *settings)
    assert sum(s.meta["numops"] > 0 for s in drawn["train"]) == round(100 * share)


@pytest.mark.parametrize("dataset", ["boxes", "habit"])
def test_the_seed_decides_everything(tmp_path: Path, dataset: str) -> None:
    sizes = ("train_samples=20", "test_samples=5")
    first, again, other = (build_splits(tmp_path / str(n), dataset, *sizes, seed=n % 2) for n in (0, 2, 1))
    assert first == again
    assert first != other
    assert build_splits(tmp_path / "own", dataset, *sizes, "seed=1") == other


def _check_answer(sample: EventSample) -> None:
    """Assert that the answer follows from both contexts."""
    for text in (sample.context, sample.refined_context or ""):
        assert contents_by_text(text)[str(sample.meta["box"])] == things_in(sample.answers[0]), text


def test_in_the_form_for_t5_the_answer_follows_from_both_contexts_too() -> None:
    empty = 0
    for sample, plain in zip(scenarios(20, form="t5")["train"], scenarios(20)["train"], strict=True):
        assert sample.context.replace("is empty", "contains nothing") == plain.context
        assert (sample.refined_context or "").replace("is empty", "contains nothing") == plain.refined_context
        empty += sample.answers == ["<extra_id_0> is empty"]
        assert things_in(sample.answers[0]) == things_in(plain.answers[0])
    assert empty > 100


def test_numops_trains_on_two_operations_and_tests_on_twelve() -> None:
    for variant in ("numops", "altforms_numops"):
        splits = scenarios(20, variant)
        assert {sample.meta["operations"] for sample in splits["train"]} == {0, 1, 2}
        assert {sample.meta["operations"] for sample in splits["test"]} == set(range(13))
        assert len(splits["train"]) == 9 * 3 * 7  # 990 scenarios then give the published 20,790


def test_vocab_trains_on_objects_that_no_test_has() -> None:
    splits = scenarios(20, "vocab")
    for split, objects in (("train", RARE_OBJECTS), ("test", OBJECTS), ("dev", OBJECTS)):
        assert all(things_in(sample.context) <= set(objects) for sample in splits[split])
    assert all(sample.context.startswith("Box 0 contains") for sample in splits["train"])


def test_altforms_share_only_function_words_with_the_test() -> None:
    for variant in ("altforms", "altforms_numops"):
        train, test = (
            {
                word
                for sample in scenarios(20, variant)[split]
                for word in re.findall(r"[a-z]+", sample.context.lower())
            }
            for split in ("train", "test")
        )
        assert train & test <= {"the", "into", "and", "nothing"}
        assert all("Container" in sample.question for sample in scenarios(20, variant)["train"])
        assert all("Box" in sample.question for sample in scenarios(20, variant)["test"])


def test_moved_contents_are_not_named_and_can_be_found_in_the_refined_context() -> None:
    samples = [sample for split in ("train", "test") for sample in scenarios(20, "move_contents")[split]]
    for sample in samples:
        _check_answer(sample)
    assert sum("the contents of" in sample.context for sample in samples) > 100


def test_modifiers_are_left_out_if_the_box_has_no_other_such_thing() -> None:
    short, resolved = 0, 0
    for split in ("train", "test"):
        for sample in scenarios(20, "ambiref")[split]:
            assert sample.refined_context is not None
            opening, *operations = sample.context.removesuffix(".").split(". ")
            assert all(" " in thing for thing in things_in(" ".join([opening, *sample.answers])))
            short += any(" " not in thing for sentence in operations for thing in things_in(sentence))
            for sentence in operations:
                assert not sentence.startswith("Put") or all(" " in thing for thing in things_in(sentence))
            _check_answer(sample)
            resolved += len(sample.refined_context) < len(sample.context)
    assert short > 1000
    assert resolved > 1000


def test_ambiguous_names_share_nouns_as_published() -> None:
    names = ambiguous_names(OBJECTS, random.Random(0))
    assert set(names) == set(OBJECTS)
    assert len(set(names.values())) == 100
    nouns = Counter(name.split()[1] for name in names.values())
    # 17 nouns with six modifiers each are 102 names, and the last two find no thing.
    assert sorted(nouns.values()) == [4] + [6] * 16
    assert ambiguous_names(OBJECTS, random.Random(1)) != names


@pytest.mark.parametrize("variant", VARIANTS)
def test_official_rows_are_in_the_published_order_and_agree_with_the_text(variant: Variant) -> None:
    rows = [
        row for split, row in official_rows(variant, scenarios=9, seed=1, row_format="few_shot") if split == "test"
    ]
    assert len(rows) == 4 * 91
    numbers = [row["sample_id"] for row in rows]
    assert numbers == sorted(numbers)
    assert set(Counter(numbers).values()) == {91}
    for place, row in enumerate(rows):
        answer = row["masked_content"].removeprefix("<extra_id_0> ")
        assert row["sentence"] == row["sentence_masked"].replace("<extra_id_0> .", f"{answer}.")
        description, box = re.fullmatch(r"(.+\.) Box (\d) contains <extra_id_0> \.", row["sentence_masked"]).groups()  # type: ignore[union-attr]
        assert int(box) == place % 7
        assert description.count(". ") == place % 91 // 7
        assert contents_by_text(description)[box] == things_in(answer)
        assert row["numops"] == sum(row["numops_by_op"].values())
        assert row["numops"] == len(re.findall(rf"\bBox {box}\b", description.partition(". ")[2]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_benchmark_files_and_training_rows_have_the_same_scenarios(variant: Variant) -> None:
    masked: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    numbers = set()
    for split, row in official_rows(variant, scenarios=20, seed=0, row_format="few_shot"):
        masked[split].add(row["sentence_masked"])
        numbers.add((row["sample_id"], split))
    assert sorted(number for number, _ in numbers) == list(range(20))  # each is of one split
    for split, samples in scenarios(20, variant).items():
        names = [sample.question.removeprefix("What does ").removesuffix(" contain?") for sample in samples]
        pairs = zip(samples, names, strict=True)
        assert masked[split] == {f"{sample.context} {name} contains <extra_id_0> ." for sample, name in pairs}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_in_the_form_for_t5_are_those_of_the_files(variant: Variant) -> None:
    files: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for split, row in official_rows(variant, scenarios=9, seed=0, row_format="t5"):
        files[split].append((row["sentence_masked"], row["masked_content"]))
    for split, samples in scenarios(9, variant, "t5").items():
        found = []
        for sample in samples:
            assert sample.conversation is not None
            (turn,) = sample.conversation.messages(sample.context)
            found.append((turn["content"], sample.answers[0]))
            (imagined,) = sample.conversation.messages("")
            assert turn["content"] == f"{sample.context} {imagined['content']}"
        assert found == files[split]


# Shares in 40,000 scenarios of the published generator with the published settings (7 boxes, at most 3 things, 2
# expected, 12 operations): of operations by kind and number of things, and of boxes by number of things.
_OPERATIONS = {
    ("move", 1): 0.2298,
    ("move", 2): 0.0612,
    ("move", 3): 0.0068,
    ("put", 1): 0.1705,
    ("put", 2): 0.0593,
    ("put", 3): 0.0110,
    ("remove", 1): 0.3169,
    ("remove", 2): 0.1201,
    ("remove", 3): 0.0244,
}
_HELD_AT_THE_START = {0: 0.1353, 1: 0.2707, 2: 0.2707, 3: 0.3233}  # Poisson with mean 2, clipped at 3
_HELD_AT_ANY_TIME = {0: 0.2634, 1: 0.2508, 2: 0.2309, 3: 0.2549}
_NUMOPS = {0: 0.3922, 1: 0.2950, 2: 0.1817, 3: 0.0869, 4: 0.0324, 5: 0.0118}  # the last: five or more
_ALL_MOVED = 0.1378


@pytest.fixture(scope="module")
def played() -> list[Scenario]:
    world = BoxWorld(boxes=7, max_objects=3, expected_objects=2.0, operations=12, objects=OBJECTS)
    rng = random.Random(2255)
    return [world.play(world.initial_state(rng), rng) for _ in range(4_000)]


def fits(found: Counter[object], shares: Mapping[object, float]) -> bool:
    """A chi-squared test at 1 %."""
    assert set(found) <= set(shares)
    whole = sum(shares.values())
    expected = [share / whole * found.total() for share in shares.values()]
    return bool(stats.chisquare([found[kind] for kind in shares], expected).pvalue > 0.01)


def test_operations_are_drawn_by_the_published_rule(played: list[Scenario]) -> None:
    operations = [operation for scenario in played for operation in scenario.operations]
    assert fits(Counter((operation.kind, len(operation.things)) for operation in operations), _OPERATIONS)
    whole = Counter(
        operation.kind == "move" and operation.things == before[operation.source]
        for scenario in played
        for operation, before in zip(scenario.operations, scenario.states, strict=False)
    )
    assert fits(whole, {True: _ALL_MOVED, False: 1 - _ALL_MOVED})
    # The rule that redraws a whole operation for an empty subset or a target equal to the source would fail:
    assert not fits(Counter(move=2414, put=3096, remove=4490), {"move": 0.2978, "put": 0.2408, "remove": 0.4614})


def test_boxes_hold_as_many_things_as_published(played: list[Scenario]) -> None:
    # One box of one state per scenario, since the states of a scenario depend on each other.
    rng = random.Random(0)
    drawn = [(scenario, rng.randrange(7), rng.randrange(13)) for scenario in played]
    assert fits(Counter(len(scenario.states[0][box]) for scenario, box, _ in drawn), _HELD_AT_THE_START)
    assert fits(Counter(len(scenario.states[after][box]) for scenario, box, after in drawn), _HELD_AT_ANY_TIME)
    steps = [sum(step.touches(box) for step in scenario.operations[:after]) for scenario, box, after in drawn]
    assert fits(Counter(min(count, 5) for count in steps), _NUMOPS)


def test_more_things_are_put_in_where_more_are_expected() -> None:
    rng = random.Random(0)
    world = BoxWorld(boxes=3, max_objects=30, expected_objects=8.0, operations=400, objects=OBJECTS)
    put = [len(step.things) for step in world.play(world.initial_state(rng), rng).operations if step.kind == "put"]
    assert sum(put) / len(put) == pytest.approx(4, abs=0.5)  # half of what is expected, as published


def test_one_box_has_no_other_to_move_things_to() -> None:
    rng = random.Random(0)
    world = BoxWorld(boxes=1, max_objects=3, expected_objects=2.0, operations=50, objects=OBJECTS)
    assert {step.kind for step in world.play(world.initial_state(rng), rng).operations} == {"put", "remove"}

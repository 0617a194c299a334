"""The Boxes generator, checked by a second simulation that knows only the text."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build


def _boxes(out: Path, *settings: str, seed: int = 0) -> dict[str, list[EventSample]]:
    result = build(BuildOptions(["boxes"], out, seed=seed, settings=[f"boxes.{setting}" for setting in settings]))
    return {path.stem: read_samples(path) for path in result.files if path.suffix == ".parquet"}


def _things(text: str) -> set[str]:
    return set(re.findall(r"the (\w+)", text))


def _simulate(context: str, *, in_order: bool = True) -> dict[str, set[str]]:
    """Contents of each box after all sentences; asserts that each operation is possible and well put."""
    opening, *operations = context.removesuffix(".").split(". ")
    world = {}
    for clause in opening.split(", "):
        box, contents = re.fullmatch(r"Box (\d+) contains (.+)", clause).groups()  # type: ignore[union-attr]
        world[box] = _things(contents)
        assert (contents == "nothing") == (not world[box])
    for sentence in operations:
        things = _things(sentence)
        assert things
        assert not in_order or re.findall(r"the (\w+)", sentence) == sorted(things)
        if move := re.fullmatch(r"Move .+ from Box (\d+) to Box (\d+)", sentence):
            assert things <= world[move[1]]
            assert move[1] != move[2]
            world[move[1]] -= things
            world[move[2]] |= things
        elif remove := re.fullmatch(r"Remove .+ from Box (\d+)", sentence):
            assert things <= world[remove[1]]
            world[remove[1]] -= things
        else:
            put = re.fullmatch(r"Put .+ into Box (\d+)", sentence)
            assert put
            assert not things & set().union(*world.values())
            world[put[1]] |= things
    return world


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[EventSample]]:
    return _boxes(tmp_path_factory.mktemp("boxes"), "scenarios=60")


def test_the_full_mode_asks_91_questions_a_scenario_in_the_published_proportions(
    full: dict[str, list[EventSample]],
) -> None:
    assert {split: len(samples) for split, samples in full.items()} == {
        "train": 27 * 91,
        "dev": 6 * 91,
        "test": 27 * 91,
    }


def test_answers_are_what_the_text_says(full: dict[str, list[EventSample]]) -> None:
    for sample in full["train"]:
        contents = _simulate(sample.context)[str(sample.meta["box"])]
        assert sample.answers == [" and ".join(f"the {thing}" for thing in sorted(contents)) or "nothing"]
        assert sample.question == f"What does Box {sample.meta['box']} contain?"
        assert sample.context.count(". ") == sample.meta["operations"]


def test_the_refined_context_is_the_initial_clause_and_the_operations_that_name_the_box(
    full: dict[str, list[EventSample]],
) -> None:
    for sample in full["train"]:
        opening, *operations = sample.context.removesuffix(".").split(". ")
        name = f"Box {sample.meta['box']}"
        clause = next(clause for clause in opening.split(", ") if clause.startswith(f"{name} "))
        touching = [sentence for sentence in operations if re.search(rf"{name}\b", sentence)]
        assert sample.refined_context == ". ".join([clause, *touching]) + "."
        assert sample.meta["numops"] == len(touching)


def test_splits_share_no_signature_and_no_initial_state_occurs_twice(full: dict[str, list[EventSample]]) -> None:
    starts: dict[str, set[int]] = {}
    signatures: dict[str, set[str]] = {}
    for split, samples in full.items():
        for sample in samples:
            opening = sample.context.split(". ")[0].removesuffix(".")
            starts.setdefault(opening, set()).add(sample.meta["scenario"])
            sizes = [str(len(_things(clause))) for clause in opening.split(", ")]
            assert sample.meta["signature"] == "-".join(sizes)
            signatures.setdefault(sample.meta["signature"], set()).add(split)
    assert all(len(scenarios) == 1 for scenarios in starts.values())
    assert all(len(splits) == 1 for splits in signatures.values())


def test_boxes_hold_at_most_three_things_and_the_draws_have_the_published_shape(tmp_path: Path) -> None:
    samples = _boxes(tmp_path, "train_samples=1500", "test_samples=0", "operations=1")["train"]
    sizes: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for sample in samples:
        opening, *operations = sample.context.split(". ")
        sizes.update(len(_things(clause)) for clause in opening.split(", "))
        kinds.update(operation.split()[0] for operation in operations)
        assert all(len(contents) <= 3 for contents in _simulate(sample.context).values())
    poisson = [math.exp(-2) * 2**k / math.factorial(k) for k in range(3)]
    expected = [*poisson, 1 - sum(poisson)]
    total = sum(sizes.values())
    assert [sizes[k] / total for k in range(4)] == pytest.approx(expected, abs=0.02)
    assert set(kinds) == {"Move", "Remove", "Put"}


def test_sample_counts_and_options_are_kept(tmp_path: Path) -> None:
    drawn = _boxes(tmp_path, "boxes=3", "operations=2", "train_samples=40", "dev_samples=5", "test_samples=11")
    assert {split: len(samples) for split, samples in drawn.items()} == {"train": 40, "dev": 5, "test": 11}
    assert all(s.context.count("Box") >= 3 and s.meta["operations"] <= 2 for s in drawn["train"])
    assert len({s.meta["scenario"] for s in drawn["train"]}) == 40


@pytest.mark.parametrize("share", [0.0, 0.29, 0.7, 1.0])
def test_changed_share_is_exact(tmp_path: Path, share: float) -> None:
    drawn = _boxes(
        tmp_path, "train_samples=100", "test_samples=0", "questions_per_scenario=3", f"changed_share={share}"
    )
    assert sum(s.meta["numops"] > 0 for s in drawn["train"]) == round(100 * share)


def test_min_numops_leaves_out_easier_questions(tmp_path: Path) -> None:
    drawn = _boxes(tmp_path, "train_samples=50", "test_samples=10", "min_numops=3")
    assert min(s.meta["numops"] for samples in drawn.values() for s in samples) >= 3


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    first, again, other = (
        _boxes(tmp_path / str(n), "train_samples=20", "test_samples=5", seed=seed) for n, seed in enumerate((0, 0, 1))
    )
    assert first == again
    assert first != other
    assert _boxes(tmp_path / "own", "train_samples=20", "test_samples=5", "seed=1", seed=0) == other


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["scenarios=10", "train_samples=5"], "scenarios asks every question"),
        (["boxes=50"], "at most 100, the number of different objects"),
        (["operations=2", "min_numops=3"], r"min_numops: got 3; expected at most operations \(2\)"),
        (["min_numops=1", "changed_share=0.5"], "with min_numops every drawn box is changed"),
        (["operations=0", "changed_share=0.5"], "expected 0 where operations is 0"),
        (["train_samples=0", "test_samples=0"], "expected a sample to draw"),
        (["boxes=many"], "boxes: got 'many'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _boxes(tmp_path, *settings)

"""The Boxes generator, checked by a second simulation that knows only the text; the options of both generators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
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


def test_min_numops_leaves_out_easier_questions(tmp_path: Path) -> None:
    drawn = build_splits(tmp_path, "boxes", "train_samples=50", "test_samples=10", "min_numops=3")
    assert min(s.meta["numops"] for samples in drawn.values() for s in samples) >= 3


@pytest.mark.parametrize("dataset", ["boxes", "habit"])
def test_the_seed_decides_everything(tmp_path: Path, dataset: str) -> None:
    sizes = ("train_samples=20", "test_samples=5")
    first, again, other = (build_splits(tmp_path / str(n), dataset, *sizes, seed=n % 2) for n in (0, 2, 1))
    assert first == again
    assert first != other
    assert build_splits(tmp_path / "own", dataset, *sizes, "seed=1") == other


@pytest.mark.parametrize(
    ("dataset", "settings", "message"),
    [
        ("boxes", "scenarios=10 train_samples=5", "scenarios asks every question"),
        ("boxes", "boxes=50", "at most 100, the number of different objects"),
        ("boxes", "operations=2 min_numops=3", r"min_numops: got 3; expected at most operations \(2\)"),
        ("boxes", "min_numops=1 changed_share=0.5", "with min_numops every drawn box is changed"),
        ("boxes", "operations=0 changed_share=0.5", "expected 0 if operations is 0"),
        ("boxes", "train_samples=0 test_samples=0", "expected a sample to draw"),
        ("boxes", "boxes=many", "boxes: got 'many'"),
        ("boxes", "train_samples=1000001", "train_samples: got '1000001'; .* less than or equal to 1000000"),
        ("boxes", "operations=1000000", "operations: got '1000000'; .* less than or equal to 1000"),
        ("boxes", "scenarios=1000000", "scenarios: got '1000000'; .* less than or equal to 10000"),
        ("boxes", "boxes=1 max_objects=1", r"found no further initial state .*train \d+ of 2,000"),
        ("boxes", "expected_objects=100", "7 boxes of 100 expected objects never drew at most 100"),
        ("habit", "strength=1.2", "strength: got '1.2'"),
        ("habit", f"train_samples={10**15}", "train_samples: got '10{15}'; .* less than or equal to 1000000"),
        ("habit", "moves=1000000", "moves: got '1000000'; .* less than or equal to 1000"),
        ("habit", "test_irrelevant=1000001", "test_irrelevant: got '1000001'; .* less than or equal to 1000000"),
        ("habit", "places=21", r"places: got 21; expected at most 20 \(all there are with prior=new\)"),
        ("habit", "places=5", r"things: got 6; expected at most 5 \(each has a habitual place of its own\)"),
        ("habit", "prior=pretrained places=17", r"expected at most 16 \(all there are with prior=pretrained\)"),
        ("habit", "things_per_story=7", r"things_per_story: got 7; expected at most 6 \(the number of things\)"),
        ("habit", "things_per_story=6 test_irrelevant=2", "every story is about all 6 things"),
        ("habit", "moves=0 test_unanswerable=2", "expected 0 if moves is 0"),
        ("habit", "train_samples=0 test_samples=0", "expected a sample to draw"),
        ("habit", "things=2 places=2 things_per_story=2 moves=0", "found no further story"),
    ],
)
def test_impossible_options_are_rejected(tmp_path: Path, dataset: str, settings: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_splits(tmp_path, dataset, *settings.split())

"""The published ways to part training from evaluation, checked on the text alone."""

from __future__ import annotations

import re

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.boxes.objects import OBJECTS, RARE_OBJECTS
from data_builders.boxes.scenarios import VARIANTS, Variant
from data_builders.build.options import BuildOptions
from data_builders.build.run import build

Splits = dict[str, list[EventSample]]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Splits]:
    """20 scenarios of each variant, as rows to train on."""
    built = {}
    for variant in VARIANTS:
        settings = ["boxes.scenarios=20", f"boxes.variant={variant}"]
        files = build(BuildOptions(["boxes"], tmp_path_factory.mktemp(variant), settings=settings)).files
        built[variant] = {path.stem: read_samples(path) for path in files if path.suffix == ".parquet"}
    return built


def things(samples: list[EventSample]) -> set[str]:
    return {thing for sample in samples for thing in re.findall(r"\b[Tt]he ([\w-]+)", sample.context)} - {"contents"}


def test_numops_trains_on_two_operations_and_tests_on_twelve(variants: dict[Variant, Splits]) -> None:
    for variant in ("numops", "altforms_numops"):
        splits = variants[variant]
        assert {sample.meta["operations"] for sample in splits["train"]} == {0, 1, 2}
        assert {sample.meta["operations"] for sample in splits["test"]} == set(range(13))
        assert len(splits["train"]) == 9 * 3 * 7  # 990 scenarios then give the published 20,790


def test_vocab_trains_on_objects_that_no_test_has(variants: dict[Variant, Splits]) -> None:
    splits = variants["vocab"]
    assert things(splits["train"]) <= set(RARE_OBJECTS)
    assert things(splits["test"]) <= set(OBJECTS)
    assert things(splits["dev"]) <= set(OBJECTS)
    assert all(sample.context.startswith("Box 0 contains") for sample in splits["train"])


def test_altforms_share_two_words_with_the_test(variants: dict[Variant, Splits]) -> None:
    for variant in ("altforms", "altforms_numops"):
        train, test = (
            {word for sample in variants[variant][split] for word in re.findall(r"[a-z]+", sample.context.lower())}
            for split in ("train", "test")
        )
        assert train & test <= {"the", "into", "and", "nothing"}
        assert all("Container" in sample.question for sample in variants[variant]["train"])
        assert all("Box" in sample.question for sample in variants[variant]["test"])


def test_moved_contents_are_not_named_and_can_be_found_in_the_refined_context(
    variants: dict[Variant, Splits],
) -> None:
    told = 0
    for split in ("train", "test"):
        for sample in variants["move_contents"][split]:
            told += "the contents of" in sample.context
            assert sample.refined_context is not None
            for text in (sample.context, sample.refined_context):
                box = str(sample.meta["box"])
                assert contents_by_text(text)[box] == things_in(sample.answers[0]), (text, box)
    assert told > 100


def things_in(text: str) -> set[str]:
    return set(re.findall(r"the (\w+)", text))


def contents_by_text(text: str) -> dict[str, set[str]]:
    """A second simulation, which starts from the clauses that are there."""
    opening, *operations = text.removesuffix(".").split(". ")
    found = [re.fullmatch(r"Box (\d+) contains (.+)", clause) for clause in opening.split(", ")]
    world = {match[1]: things_in(match[2]) for match in found if match}
    for sentence in operations:
        boxes = re.findall(r"Box (\d+)", sentence)
        whole = "the contents of" in sentence
        moved = set(world[boxes[0]]) if whole else things_in(sentence)
        if not sentence.startswith("Put"):
            world.setdefault(boxes[0], set()).difference_update(moved)
        if not sentence.startswith("Remove"):
            world.setdefault(boxes[-1], set()).update(moved)
    return world

"""The published ways to separate training from evaluation, checked on the text only."""

from __future__ import annotations

import random
import re
from collections import Counter

from d2e_sft.data.sample import EventSample
from data_builders.boxes.wording import Wording, ambiguous_names
from data_builders.boxes.world import OBJECTS, RARE_OBJECTS, Operation
from tests.data_builders.boxes.simulation import contents_by_text, scenarios, things_in


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


def test_the_modifier_stays_if_the_box_has_another_thing_with_that_noun() -> None:
    names = {"cup": "red car", "hat": "blue car", "pen": "big pen"}
    wording = Wording(names=names, omit_modifiers=True)
    before = (frozenset({"cup", "hat", "pen"}), frozenset[str]())
    both = Operation("move", frozenset({"cup", "pen"}), source=0, target=1)
    assert wording.operation(both, before) == "Move the red car and the pen from Box 0 to Box 1."
    assert wording.leaves_open(both, before)
    assert wording.operation(Operation("remove", frozenset({"hat"}), source=0), before) == (
        "Remove the blue car from Box 0."
    )
    alone = (frozenset({"hat"}), frozenset({"cup"}))
    assert wording.operation(Operation("remove", frozenset({"hat"}), source=0), alone) == "Remove the car from Box 0."
    assert wording.operation(Operation("put", frozenset({"pen"}), target=1), alone) == "Put the big pen into Box 1."

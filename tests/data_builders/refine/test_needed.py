"""Refined contexts keep answers, evidence, events and the sentences between them, whatever their score."""

from __future__ import annotations

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.refine.relevance import Asked, best_occurrence
from data_builders.refine.rules import RefinerOptions, refine
from tests.tiny import make_sample

STORY = ["Bob owned an old lamp.", "He took a nap.", "The lamp sparked.", "The house burned down.", "Bob moved."]


def sample(**changes: object) -> EventSample:
    fields: dict[str, object] = {
        "format": "nli",
        "context": " ".join(STORY),
        "refined_context": None,
        "question": "He took a nap ends before the house burned down",
        "answers": ["positive"],
    }
    return make_sample(**(fields | changes))


@pytest.mark.parametrize(
    ("meta", "places"),
    [
        # Both events and what lies between them.
        ({"events": ["He took a nap", "the house burned down."]}, [1, 2, 3]),
        ({"events": ["the house burned down", "Bob take a nap"]}, [1, 2, 3]),  # half of its words: nap
        # The whole context if no sentence states an event; a name does not locate one, since two sentences have Bob.
        ({"events": ["Smoke filled the rooms", "the house burned down"]}, [0, 1, 2, 3, 4]),
        ({"events": ["Bob is sad", "the house burned down"]}, [0, 1, 2, 3, 4]),
        # In a process only what comes before an effect or after a cause.
        ({"chain": ["the lamp sparks", "more smoke"]}, [2, 3, 4]),
        ({"chain": ["the house burns down", "more smoke"]}, [3, 4]),
        ({"chain": ["a storm", "the house burns down"]}, [0, 1, 2, 3]),
        ({"chain": ["a storm", "more smoke"]}, [0, 1, 2, 3, 4]),
        ({"evidence": ["The lamp sparked. The house burned down."]}, [2, 3]),
        ({}, []),
    ],
)
def test_sentences_that_are_needed(meta: dict[str, list[str]], places: list[int]) -> None:
    assert sorted(Asked(sample(meta=meta)).evidence(STORY, [0.0] * len(STORY))) == places


EVENTS = {"meta": {"events": ["He took a nap", "the house burned down"]}}
FAULT = {"format": "qa", "question": "What sparked?", "answers": ["a fault in the wiring"]}


@pytest.mark.parametrize(
    ("changes", "options", "places"),
    [
        (EVENTS, {}, [1, 2, 3]),
        (EVENTS, {"keep_events": False}, [3]),
        # Every accepted answer; if no sentence states one, the neighbours of the most relevant sentence.
        ({"format": "qa", "question": "What burned?", "answers": ["the house", "Bob", "a barn"]}, {}, [0, 3]),
        (FAULT, {}, [1, 2, 3]),
        (FAULT, {"keep_answer": False}, [2]),
    ],
)
def test_the_refiner_keeps_them_unless_an_option_turns_it_off(
    changes: dict[str, object], options: dict[str, bool], places: list[int]
) -> None:
    kept = refine(sample(**changes), RefinerOptions(max_share=0.2, **options)).refined_context
    assert kept == " ".join(STORY[place] for place in places)


def test_an_answer_is_found_however_its_indices_are_set() -> None:
    assert best_occurrence(["Salt is NaCl.", "Some report Al3O2 there."], "Al_{3}O_{2}", [0.0, 0.0]) == {1}


def test_an_event_in_the_question_stays_with_the_answer() -> None:
    context = (
        "The ministry said that forty patients died. Many patients with similar symptoms were admitted on Monday. "
        "Patients declared positive had a high fever, a rash, and muscle pain. The town is small. Its mayor spoke."
    )
    asked = sample(
        format="qa",
        context=context,
        question="What follows after patients with similar symptoms were admitted?",
        answers=["Patients declared positive had a high fever, a rash, and muscle pain"],
    )
    options = RefinerOptions(max_share=0.2)
    assert "admitted on Monday" in str(refine(asked, options).refined_context)
    assert "admitted" not in str(refine(asked, options.model_copy(update={"keep_events": False})).refined_context)
    other = asked.model_copy(update={"question": "Where will the next congress of the surgeons be held this year?"})
    assert "admitted" not in str(refine(other, options).refined_context), "half of its words are nowhere"


def test_a_label_is_neither_looked_for_nor_kept() -> None:
    text = "Less rain falls. Plants wilt. Seeds grow less."
    asked = sample(
        format="scq",
        context=text,
        question="suppose plants wilt happens, how will it affect plants wilt.",
        options=["more", "less", "no effect"],
        answers=["less"],
        meta={"chain": ["plants wilt", "plants wilt"]},
    )
    assert refine(asked, RefinerOptions()).refined_context == "Plants wilt."

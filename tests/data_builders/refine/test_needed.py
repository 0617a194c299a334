"""Refined contexts keep answers, evidence, events and the sentences between them, whatever their score."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.build.options import BuildOptions
from data_builders.build.reading import read_datasets
from data_builders.raw.source import SPLITS
from data_builders.refine.needed import best_occurrence, needed, spans_of
from data_builders.refine.rules import RefinerOptions, refine, refine_samples
from data_builders.sources import SOURCES
from data_builders.text.sentences import split_sentences
from tests.tiny import make_sample

STORY = ["Bob owned an old lamp.", "He took a nap.", "The lamp sparked.", "The house burned down.", "Bob moved."]
DEFAULT = RefinerOptions()


def sample(**changes: object) -> EventSample:
    fields: dict[str, object] = {
        "format": "nli",
        "context": " ".join(STORY),
        "refined_context": None,
        "question": "He took a nap ends before the house burned down",
        "answers": ["positive"],
    }
    return make_sample(**(fields | changes))


def places(**meta: object) -> list[int]:
    return sorted(needed(sample(meta=meta), STORY, [0.0] * len(STORY)))


def test_both_events_and_what_lies_between_them_are_needed() -> None:
    assert places(events=["He took a nap", "the house burned down."]) == [1, 2, 3]
    assert places(events=["the house burned down", "Bob take a nap"]) == [1, 2, 3]  # half of its words: nap


def test_an_event_that_no_sentence_states_needs_the_whole_context() -> None:
    assert places(events=["Smoke filled the rooms", "the house burned down"]) == [0, 1, 2, 3, 4]
    # A name does not locate an event: two sentences have Bob.
    assert places(events=["Bob is sad", "the house burned down"]) == [0, 1, 2, 3, 4]


def test_in_a_process_only_what_comes_before_an_effect_or_after_a_cause_is_needed() -> None:
    assert places(chain=["the lamp sparks", "more smoke"]) == [2, 3, 4]
    assert places(chain=["the house burns down", "more smoke"]) == [3, 4]
    assert places(chain=["a storm", "the house burns down"]) == [0, 1, 2, 3]
    assert places(chain=["a storm", "more smoke"]) == [0, 1, 2, 3, 4]


def test_evidence_is_needed_anywhere() -> None:
    assert places(evidence=["The lamp sparked. The house burned down."]) == [2, 3]
    assert places() == []


def test_the_refiner_keeps_them_unless_an_option_turns_it_off() -> None:
    asked = sample(meta={"events": ["He took a nap", "the house burned down"]})
    assert refine(asked, RefinerOptions(max_share=0.2)).refined_context == " ".join(STORY[1:4])
    assert refine(asked, RefinerOptions(max_share=0.2, keep_events=False)).refined_context == STORY[3]


def test_every_accepted_answer_stays() -> None:
    asked = sample(format="qa", question="What burned?", answers=["the house", "Bob", "a barn"])
    assert spans_of(asked) == ["the house", "Bob", "a barn"]
    assert refine(asked, RefinerOptions(max_share=0.2)).refined_context == f"{STORY[0]} {STORY[3]}"


def test_an_answer_is_found_however_its_indices_are_set() -> None:
    assert best_occurrence(["Salt is NaCl.", "Some report Al3O2 there."], "Al_{3}O_{2}", [0.0, 0.0]) == {1}


def test_the_neighbours_of_the_best_sentence_stay_if_none_states_the_answer() -> None:
    asked = sample(format="qa", question="What sparked?", answers=["a fault in the wiring"])
    assert refine(asked, RefinerOptions(max_share=0.2)).refined_context == " ".join(STORY[1:4])
    assert refine(asked, RefinerOptions(max_share=0.2, keep_answer=False)).refined_context == STORY[2]


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
    assert refine(asked, DEFAULT).refined_context == "Plants wilt."


def test_refined_contexts_of_every_source_keep_what_is_needed(raw: Path) -> None:
    assert {sample.dataset for sample in _refined(raw)} >= {"tracie", "cider", "wiqa", "ifqa", "ester", "cosmosqa"}


@pytest.mark.slow
def test_refined_contexts_of_every_published_source_keep_what_is_needed(published_raw: Path) -> None:
    assert {sample.dataset for sample in _refined(published_raw)} >= {"crepe", "openpi2", "tracie", "timeqa", "habit"}


def _refined(raw: Path) -> Iterator[EventSample]:
    """Samples of all sources with raw files, about 500 spread over each split, refined and checked."""
    options = BuildOptions(tuple(SOURCES), Path("unused"), raw=raw, skip_bad=True)
    for dataset in read_datasets(options, SPLITS).datasets.values():
        for split in dataset.splits.values():
            rows = split.rows[:: max(1, len(split.rows) // 500)]
            for before, after in zip(rows, refine_samples(rows, DEFAULT), strict=True):
                _check(before, after)
                yield after


def _check(before: EventSample, after: EventSample) -> None:
    context, refined = split_sentences(before.context), split_sentences(after.refined_context or "")
    assert refined or not context, after.id
    assert not [part for part in refined if re.fullmatch(r"\W*\d+\W*", part) and part != before.context], after.id
    if before.refined_context is not None:
        assert after is before  # exact by its source
        return
    kept = " ".join((after.refined_context or "").split())
    remaining = iter(before.context.split())
    assert all(word in remaining for word in kept.split()), after.id  # in order
    if evidence := after.meta.get("evidence"):  # procedures: whole steps, always with the latest one
        lines = (after.refined_context or "").split("\n")
        assert set(evidence) <= set(lines) <= set(before.context.split("\n")), after.id
    for span in spans_of(after):
        assert not best_occurrence([before.context], span, [0]) or best_occurrence([kept], span, [0]), after.id
    for key in ("events", "chain"):
        for event in after.meta.get(key, []):
            assert not best_occurrence([before.context], event, [0]) or best_occurrence([kept], event, [0]), after.id

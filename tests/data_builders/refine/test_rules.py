"""The extractive refiner keeps relevant sentences and clauses, and what the answer needs whatever its score."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.sample import EventSample
from data_builders.refine.relevance import Asked, best_occurrence, labelled_datasets
from data_builders.refine.rules import RefinerOptions, refine, refine_samples
from data_builders.text.sentences import split_sentences
from tests.tiny import make_sample

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
WAR = "In June, a war began (far away). It lasted years. Then, oddly, Ann moved to Oslo, where she sold boats."
DEFAULT = RefinerOptions()


def _sample(number: int = 0, **changes: object) -> EventSample:
    fields = {
        "context": "A storm came. The negative film was lost.",
        "refined_context": None,
        "question": "What came?",
    }
    return make_sample(number, **{**fields, "answers": ["negative"], **changes})


def _nli(context: str, question: str) -> dict[str, object]:
    return {"context": context, "question": question, "format": "nli"}


@pytest.mark.parametrize(("sample", "options", "refined"), CASES["sentences"])
def test_sentences_that_matter_are_kept(sample: dict[str, object], options: dict[str, Any], refined: str) -> None:
    assert refine(_sample(**sample), RefinerOptions(keep_events=False, **options)).refined_context == refined


def test_random_contexts_give_a_subsequence_of_their_sentences() -> None:
    rng = random.Random(3)
    words = ["river", "stone", "cloud", "march", "garden", "window", "paper", "music"]
    for _ in range(300):
        sentences = [
            " ".join(rng.choices(words, k=rng.randint(1, 6))).capitalize() + rng.choice(".!?")
            for _ in range(rng.randint(1, 8))
        ]
        asked = _sample(**_nli(" ".join(sentences), " ".join(rng.choices(words, k=3))))
        kept, remaining = split_sentences(refine(asked, DEFAULT).refined_context or ""), iter(sentences)
        assert kept
        assert all(sentence in remaining for sentence in kept)


def test_options_that_all_rows_of_a_dataset_share_are_labels_not_query() -> None:
    likely = ("more likely", "less likely")
    label = {"format": "scq", "context": "Rain is likely. A storm came.", "question": "A storm"}
    rows = [_sample(i, options=likely, answers=[likely[i]], **label) for i in range(2)]
    assert [row.refined_context for row in refine_samples(rows, DEFAULT)] == ["A storm came."] * 2
    # Options are content if there is a single row, or if another row of the dataset has others.
    assert refine(rows[0], DEFAULT).refined_context == rows[0].context
    other = _sample(2, options=("more likely", "a flood"), answers=["a flood"], **label)
    assert refine_samples([*rows, other], DEFAULT)[0].refined_context == rows[0].context
    # The judge's fallback refines row by row.
    assert refine(rows[0], DEFAULT, labelled_datasets(rows)).refined_context == "A storm came."


def test_an_existing_refined_context_stays() -> None:
    sample = _sample(refined_context="exact")
    assert refine(sample, DEFAULT) is sample


# Sentences that are needed

NAP = ["Bob owned an old lamp.", "He took a nap.", "The lamp sparked.", "The house burned down.", "Bob moved."]
EVENTS = {"meta": {"events": ["He took a nap", "the house burned down"]}}
FAULT = {"format": "qa", "question": "What sparked?", "answers": ["a fault in the wiring"]}
BURNT = {"format": "qa", "question": "What burned?", "answers": ["the house", "Bob", "a barn"]}


def _nap(**changes: object) -> EventSample:
    return _sample(**{**_nli(" ".join(NAP), "He took a nap ends before the house burned down"), **changes})


@pytest.mark.parametrize(("meta", "places"), CASES["needed"])
def test_sentences_that_are_needed(meta: dict[str, list[str]], places: list[int]) -> None:
    assert sorted(Asked(_nap(meta=meta)).evidence(NAP, [0.0] * len(NAP))) == places


@pytest.mark.parametrize(
    ("changes", "options", "places"),
    [
        (EVENTS, {}, [1, 2, 3]),
        (EVENTS, {"keep_events": False}, [3]),
        # Every accepted answer; if no sentence states one, the neighbours of the most relevant sentence.
        (BURNT, {}, [0, 3]),
        (FAULT, {}, [1, 2, 3]),
        (FAULT, {"keep_answer": False}, [2]),
    ],
)
def test_options_turn_this_off(changes: dict[str, object], options: dict[str, bool], places: list[int]) -> None:
    kept = refine(_nap(**changes), RefinerOptions(max_share=0.2, **options)).refined_context
    assert kept == " ".join(NAP[place] for place in places)


def test_an_answer_is_found_however_its_indices_are_set() -> None:
    assert best_occurrence(["Salt is NaCl.", "Some report Al3O2 there."], "Al_{3}O_{2}", [0.0, 0.0]) == {1}


def test_an_event_in_the_question_stays_with_the_answer() -> None:
    answer = "Patients declared positive had a high fever, a rash, and muscle pain"
    context = (
        "The ministry said that forty patients died. Many patients with similar symptoms were admitted on Monday. "
        f"{answer}. The town is small. Its mayor spoke."
    )
    question = "What follows after patients with similar symptoms were admitted?"
    asked = _sample(format="qa", context=context, question=question, answers=[answer])
    other = asked.model_copy(update={"question": "Where will the next congress of the surgeons be held this year?"})
    without = RefinerOptions(max_share=0.2, keep_events=False)
    for sample, options, kept in (
        (asked, RefinerOptions(max_share=0.2), True),
        (asked, without, False),
        (other, RefinerOptions(max_share=0.2), False),  # half of its words are nowhere
    ):
        assert ("admitted on Monday" in str(refine(sample, options).refined_context)) == kept


def test_a_label_is_neither_looked_for_nor_kept() -> None:
    asked = _sample(
        format="scq",
        context="Less rain falls. Plants wilt. Seeds grow less.",
        question="suppose plants wilt happens, how will it affect plants wilt.",
        options=["more", "less", "no effect"],
        answers=["less"],
        meta={"chain": ["plants wilt", "plants wilt"]},
    )
    assert refine(asked, DEFAULT).refined_context == "Plants wilt."


# Clauses


@pytest.mark.parametrize(("context", "question", "answer", "refined"), CASES["clauses"])
def test_clauses_that_the_answer_does_not_need_go(context: str, question: str, answer: str, refined: str) -> None:
    asked = _sample(context=context, question=question, answers=[answer], relation="causal", format="qa")
    assert refine(asked, DEFAULT).refined_context == refined
    assert refine(asked, RefinerOptions(unit="sentence")).refined_context == context


def test_times_and_clauses_stay_where_the_order_of_events_is_asked() -> None:
    asked = _nli(WAR, "Ann moved before the war began") | {"meta": {"events": ["Ann moved", "a war began"]}}
    kept = "In June, a war began. It lasted years. Then, Ann moved to Oslo, where she sold boats."
    assert refine(_sample(relation="temporal", **asked), DEFAULT).refined_context == kept

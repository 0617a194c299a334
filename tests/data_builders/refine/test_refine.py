"""Refined contexts by rule (relevant sentences and clauses, and what the answer needs) and by a judge."""

import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.sample import EventSample
from data_builders.refine.judged import Outcome, judge_refine, refine_prompts
from data_builders.refine.relevance import Asked, best_occurrence, labelled_datasets, word_overlap
from data_builders.refine.rules import RefinerOptions, refine, refine_samples
from data_builders.text.sentences import split_sentences
from tests.judge_server import JudgeServer, MakeJudge
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


STORY = "Rain fell. Dr. Li slept. The river rose. Roads were closed."


def story(number: int = 0, context: str = STORY, **changes: object) -> EventSample:
    return make_sample(number, context=context, refined_context=None, meta={"row": number}, **changes)


def by_rules(sample: EventSample) -> EventSample:
    return refine(sample, RefinerOptions(threshold=0.25, max_share=0.6))


def rewriting(choice: str) -> Callable[[str], str]:
    """A judge that writes its own words, and answers with `choice` when it is asked for sentences."""
    return lambda user: choice if user.startswith("[1] ") else "The river rose after rain.\nStatus: done"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Rain fell. The river rose.\nStatus: done", "Rain fell. The river rose."),
        ("```\nrain fell; river rose\n```\n\n**Status: done**", "rain fell; river rose"),  # case and marks aside
        (f"{STORY}\nStatus: done", STORY),
    ],
)
def test_the_judge_deletes_words(server: JudgeServer, judge: MakeJudge, reply: str, text: str) -> None:
    server.reply = lambda user: reply
    refined, counts = judge_refine([story()], judge(), by_rules)
    changes = {"refined_context": text, "meta": {"row": 0, "refiner": "judge"}}
    assert refined == [story().model_copy(update=changes)]
    assert counts == Counter({Outcome.JUDGE: 1})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("first", "wrong"),
    [
        ("Rain fell. Rivers rose.", "rivers"),  # an inflected word
        ("The river rose. Rain fell.", "rain"),  # another order
        ("Rain fell. Rain fell.", "rain"),  # twice
        ("Here it is: Rain fell.", "here"),
    ],
)
def test_a_judge_that_rewrites_is_corrected(server: JudgeServer, judge: MakeJudge, first: str, wrong: str) -> None:
    server.reply = lambda user: "Rain fell.\nStatus: done" if "(The text has no" in user else f"{first}\nStatus: done"
    [refined], counts = judge_refine([story()], asked := judge(), by_rules)
    assert (refined.refined_context, counts) == ("Rain fell.", Counter({Outcome.JUDGE: 1}))
    assert f'(The text has no "{wrong}" there.' in server.users[1]
    assert (len(server.requests), asked.usage.reasked) == (2, 1)


@pytest.mark.parametrize(("reply", "outcome"), CASES["choices of sentences"])
def test_a_second_rewrite_means_sentences(server: JudgeServer, judge: MakeJudge, reply: str, outcome: str) -> None:
    server.reply = rewriting(reply)
    [refined], counts = judge_refine([story()], judge(), by_rules)
    assert counts == Counter({Outcome(outcome): 1})
    chosen = Outcome(outcome) is Outcome.SENTENCES
    assert refined.refined_context == ("Rain fell. The river rose." if chosen else by_rules(story()).refined_context)
    assert refined.meta == {"row": 0, "refiner": "judge" if chosen else "rules"}


def test_a_reply_without_its_last_line_is_not_taken(server: JudgeServer, judge: MakeJudge) -> None:
    server.reply = lambda user: "Sentences: 2" if user.startswith("[1] ") else "Rain fell. Dr. Li"  # cut off
    [refined], counts = judge_refine([story()], judge(), by_rules)
    assert (refined.refined_context, counts) == ("Dr. Li slept.", Counter({Outcome.SENTENCES: 1}))


def test_each_sample_gets_its_own_reply(server: JudgeServer, judge: MakeJudge) -> None:
    kept, short = make_sample(3), story(2, context="Only one sentence.")
    samples = [story(1), short, kept, story(4), story(5, context=""), story(6)]
    replies = {"1": "Rain fell.", "4": "The river rose. Roads were closed.", "6": "No such words."}
    server.reply = lambda user: f"{replies[user.split(' days')[0][-1]]}\nStatus: done"
    refined, counts = judge_refine(samples, judge(), by_rules)
    assert [sample.id for sample in refined] == [sample.id for sample in samples]
    assert [sample.refined_context for sample in refined] == [
        "Rain fell.",
        "Only one sentence.",
        kept.refined_context,
        "The river rose. Roads were closed.",
        "",
        by_rules(samples[5]).refined_context,
    ]
    other = {Outcome.NOTHING_TO_CHOOSE: 2, Outcome.ALREADY_REFINED: 1, Outcome.UNDECIDED: 1}
    assert counts == Counter({Outcome.JUDGE: 2, **other})
    assert len(refine_prompts(samples)) == 3
    assert len(server.requests) == 3 + 1 + 2  # one is told what is wrong, then asked twice for sentences
    assert refined[2] == kept


def test_a_prompt_has_the_context_and_shows_the_answer_except_for_nli() -> None:
    (qa,) = refine_prompts([story(answers=["the river", "a river"])])
    assert qa.user == (f"{STORY}\n\nQuestion: What rose after 0 days?\nAnswer:\nthe river\na river")
    (nli,) = refine_prompts([story(format="nli", question="Rain fell.", answers=["positive"])])
    assert nli.user.endswith("\n\nHypothesis: Rain fell.")
    assert "positive" not in nli.user + nli.system


SENTENCES = [
    "The river flooded the old mill.",
    "Birds sang.",
    "The mill owner fled the flood by boat.",
    "A boat sank.",
]
QUERY = "Who fled the mill by boat?"


def test_overlap_weighs_rare_words_more_by_hand() -> None:
    # Stems of the query: fled, mill, boat. Two of four sentences have "mill", two have "boat", one has "fled".
    twice, once = math.log(1 + 4 / 2), math.log(1 + 4 / 1)
    assert word_overlap(SENTENCES, QUERY) == pytest.approx([twice, 0, twice + once + twice, twice])

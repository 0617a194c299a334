"""The comparison of scorers measures what it says."""

from __future__ import annotations

from d2e_sft.data.sample import EventSample
from data_builders.refine.comparison import compare_scorers, usable, within_words
from tests.tiny import make_sample

# Ten words each; the answer stands in a sentence that shares no word with the question, but for the answer.
CONTEXT = (
    "Ann painted the fence of the house in early spring. "
    "A neighbour of hers had sold her some cheap paint. "
    "Rain then fell on the street for two whole days. "
    "Nobody in that long street had ever seen such weather."
)


def _sample(answer: str = "cheap paint") -> EventSample:
    return make_sample(context=CONTEXT, question="With what did Ann paint her fence?", answers=[answer])


def test_sentences_are_taken_by_relevance_as_long_as_they_fit() -> None:
    sentences = ["one two three", "four", "five six", "seven eight nine ten"]
    assert within_words(sentences, [0.1, 0.9, 0.5, 0.2], 0.5) == [1, 2]  # 5 words of 10: 1 + 2, then 4 is too many
    assert within_words(sentences, [0.1, 0.9, 0.5, 0.2], 0.6) == [0, 1, 2]  # the fourth does not fit, the first does
    assert within_words(sentences, [0.1, 0.2, 0.3, 0.9], 0.1) == [3]  # the best one in any case


def test_only_samples_with_the_answer_and_some_sentences_count() -> None:
    short = make_sample(context="Ann has cheap paint. It rains.", answers=["cheap paint"])
    nowhere, spans = _sample("a brush"), _sample("cheap paint; Rain")
    spans = spans.model_copy(update={"meta": {"spans": ["cheap paint", "Rain"]}})
    good = _sample()
    assert usable([short, nowhere, good, spans], 9, seed=0) == [good, spans]
    assert len(usable([good] * 9, 4, seed=0)) == 4


def test_counts_are_those_of_the_hand_worked_case() -> None:
    lines = {(m.scorer, m.query, m.share_of_words): m for m in compare_scorers("x", [_sample()], ["overlap"])}
    # The question names the first sentence only; with the answer the second is found too.
    assert lines["overlap", "question", 0.3].answers_kept == 0
    assert lines["overlap", "question and answer", 0.5].answers_kept == 1
    assert lines["overlap", "question and answer", 0.5].words_kept == 0.5
    assert lines["default", "question and answer", None].answers_kept == 1


def test_of_a_question_about_a_step_or_two_events_their_sentences_are_what_decides() -> None:
    step = _sample("a brush").model_copy(update={"meta": {"evidence": ["Ann", "Rain then fell on the street"]}})
    events = _sample("positive").model_copy(
        update={
            "format": "nli",
            "meta": {"events": ["Nobody in that long street had ever seen such weather", "It rains"]},
        }
    )
    assert usable([step, events], 9, seed=0) == [step, events]
    for sample, question in (
        (step, "Which rain fell on the street then?"),
        (events, "Who saw weather in that street?"),
    ):
        asked = sample.model_copy(update={"question": question})
        lines = {(m.scorer, m.share_of_words): m for m in compare_scorers("x", [asked], ["overlap"])}
        assert lines["overlap", 0.3].answers_kept == 1
        elsewhere = sample.model_copy(update={"question": "What did Ann paint?"})
        lines = {(m.scorer, m.share_of_words): m for m in compare_scorers("x", [elsewhere], ["overlap"])}
        assert lines["overlap", 0.3].answers_kept == 0
        assert lines["default", None].answers_kept == 1, "kept by rule"

"""Shares of words, counted by hand."""

from __future__ import annotations

import pytest

from eval.score.faithfulness import (
    answer_in_context,
    claim_overlap,
    context_recall,
    lacks_answer,
    refuses,
    word_measures,
)
from eval.score.scores import score_predictions
from eval.score.scoring import score_output
from tests.chat_samples import chat_sample
from tests.factories import choice, prediction, story

CONTEXT = "Goods may be returned within 30 days. A receipt is needed."


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Within 30 days.", 1.0),  # within, 30, days
        ("Within 60 days, with the receipt!", 3 / 4),  # within, days, receipt; not 60
        ("Ask my aunt.", 0.0),
        ("That is it.", None),  # function words alone
    ],
)
def test_answer_in_context(answer: str, share: float | None) -> None:
    assert answer_in_context(answer, CONTEXT) == share


def test_context_recall_asks_for_the_gold_words_of_the_context_alone() -> None:
    gold = ["Gladly: 30 days, with a receipt."]  # 30, days, receipt are the context's; gladly is not
    assert context_recall("30 days it is", gold, CONTEXT) == pytest.approx(2 / 3)
    assert context_recall("Gladly!", gold, CONTEXT) == 0
    assert context_recall("30", ["Gladly!"], CONTEXT) is None
    assert context_recall("a receipt", ["30 days", "receipt"], CONTEXT) == 1, "the nearest accepted answer counts"


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Within 30 days.", 1.0),
        ("A receipt is returned.", 1 / 2),  # both words are in the context, in two sentences
        ("Within 30 days. Ask my aunt.", (1 + 0) / 2),
        ("That is it.", None),
    ],
)
def test_claim_overlap_wants_the_words_of_a_sentence_in_one_place(answer: str, share: float | None) -> None:
    assert claim_overlap(answer, CONTEXT) == share


def test_a_long_qa_answer_is_shown_as_containing_the_accepted_one() -> None:
    context = "Many models of computation exist. The most commonly used model is the Turing machine."
    said = "The most common model of a computer is the Turing machine."
    answer = story(1, None, said, gold=["Turing machine", "the Turing machine"], context=context, habit=[])
    assert answer.exact_match == 0
    found = word_measures(answer)
    assert (found["contained"], found["context_recall"]) == (1, 1)
    assert found["answer_in_context"] == 4 / 6, "most, model, turing, machine; not common, computer"
    assert found["claim_overlap"] == 4 / 6
    assert "refusal" not in found
    assert word_measures(answer.model_copy(update={"answer": ["a machineTuring machines"]}))["contained"] == 0
    (group,) = score_predictions([answer]).groups
    assert (group.faithfulness["n"], group.faithfulness["contained"].mean) == (1, 1)


@pytest.mark.parametrize(
    ("gold", "subset", "lacks"),
    [
        (["the garage"], None, False),
        (["the attic"], None, True),
        (["the attic", "barn"], None, False),
        (["yes"], None, False),  # has no words to look for
        (["unknown"], "unanswerable", True),
        (["garage"], "unanswerable", True),
        (["the attic"], "irrelevant", False),
    ],
)
def test_a_context_lacks_the_answer_if_it_is_tagged_so_or_has_none_of_its_words(
    gold: list[str], subset: str | None, lacks: bool
) -> None:
    assert lacks_answer(story(1, subset, "kitchen", gold=gold)) == lacks


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("The context does not say.", True),
        ("It isn't mentioned in the text.", True),
        ("I don't know", True),
        ("This cannot be determined from the passage.", True),
        ("Unknown", True),
        ("There is not enough information.", True),
        ("the attic", False),
        ("It is no longer in the barn", False),
        ("He did not come", False),
        ("", False),
    ],
)
def test_refusals(answer: str, said: bool) -> None:
    assert refuses(answer) == said


def test_right_and_wrong_refusals_and_the_rest() -> None:
    rows = [story(n, None, said, gold=["attic"]) for n, said in enumerate(["Not known.", "kitchen", "garage", "barn"])]
    rows += [story(9, None, "not known"), story(10, "unanswerable", "nobody can tell", gold=["nobody can tell"])]
    scores = score_predictions(rows).groups[0].faithfulness
    assert (scores["n"], scores["lacking"], scores["refusal"].mean) == (6, 5, 2 / 5)
    assert (scores["false_refusal"].mean, scores["answered"].mean) == (1, 0)
    # The benchmark's own refusal is one on all rows, also where it is no usual phrase.
    rows = [story(n, "gold", said) for n, said in enumerate(["N/A.", "the garage", "kitchen", "not known"])]
    rows += [story(9 + n, "unanswerable", said, gold=["n/a"]) for n, said in enumerate(["n/a", "garage", "unknown"])]
    scores = score_predictions(rows).groups[0].faithfulness
    shares = [scores[name].mean for name in ("refusal", "false_refusal", "answered")]
    assert shares == pytest.approx([2 / 3, 2 / 4, 1 / 4])
    assert "false_refusal" not in score_predictions(rows[:4]).groups[0].faithfulness, "no row has a refusal as answer"


def test_a_whole_output_is_the_answer_and_right_where_it_contains_the_gold_one() -> None:
    said = "<think>hm</think>\nYes, I can.\nWithin 30 days, dear customer."
    prediction = score_output(chat_sample(context=CONTEXT, answers=["Within 30 days."]), said, "")
    assert prediction.answer == ["Yes, I can.\nWithin 30 days, dear customer."]
    assert (prediction.extraction, prediction.right, prediction.exact_match) == ("strict", True, 0)
    scores = score_predictions([prediction])
    faithful = scores.groups[0].faithfulness
    assert faithful["answer_in_context"].mean == pytest.approx(3 / 5)  # 30, days, within; not dear, customer
    assert faithful["context_recall"].mean == 1


def test_rows_of_other_formats_and_without_context_have_none() -> None:
    bare = score_output(chat_sample(context=""), "At nine.", "")
    assert score_predictions([choice(1, True), prediction(2, True), bare]).overall.faithfulness is None

"""Shares of words, counted by hand."""

from __future__ import annotations

import pytest

from eval.score.faithfulness import answer_in_context, context_recall, score_faithfulness
from eval.score.scores import score_predictions
from eval.score.scoring import score_output
from tests.chat_samples import chat_sample

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
    gold = "Gladly: 30 days, with a receipt."  # 30, days, receipt are the context's; gladly is not
    assert context_recall("30 days it is", gold, CONTEXT) == pytest.approx(2 / 3)
    assert context_recall("Gladly!", gold, CONTEXT) == 0
    assert context_recall("30", "Gladly!", CONTEXT) is None


def test_a_whole_output_is_the_answer_and_right_where_it_contains_the_gold_one() -> None:
    said = "<think>hm</think>\nYes, I can.\nWithin 30 days, dear customer."
    prediction = score_output(chat_sample(context=CONTEXT, answers=["Within 30 days."]), said, "")
    assert prediction.answer == ["Yes, I can.\nWithin 30 days, dear customer."]
    assert (prediction.extraction, prediction.right, prediction.exact_match) == ("strict", True, 0)
    scores = score_predictions([prediction])
    faithful = scores.groups[0].faithfulness
    assert faithful == score_faithfulness([prediction])
    assert faithful.answer_in_context.mean == pytest.approx(3 / 5)  # 30, days, within; not dear, customer
    assert faithful.context_recall.mean == 1


def test_rows_of_other_formats_and_without_context_have_none() -> None:
    assert score_faithfulness([score_output(chat_sample(context=""), "At nine.", "")]) is None

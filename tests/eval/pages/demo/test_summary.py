"""What the page of `d2e demo` says about three answers."""

from __future__ import annotations

import pytest

from d2e_sft.data.prompts import load_prompt_set
from eval.pages.demo.answering import Answers
from eval.pages.demo.question import Question
from eval.pages.demo.summary import summarise


def summary(plain: str, debiased: str, imagined: str, expected: str = "", cut: bool = False) -> str:
    asked = Question("qa", "The dam broke.", "What broke?", expected=expected)
    form = "The answer is: "
    answers = Answers(form + plain, form + debiased, form + imagined, cut=cut, done=True)
    return summarise(asked, load_prompt_set("default"), answers, 0.5)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (("the dam", "The dam.", "dam"), "the same with and without the context, and debiasing at this α does not"),
        (("a cup", "the dam", "a cup"), "The plain answer is the same without the context"),
        (("the dam", "the dam", "a cup"), "The context changes the answer, and debiasing at this α keeps it"),
        (("the dam", "a cup", "a cup"), "the debiased one is the same as without the context"),
        (("the dam", "a car", "a cup"), "and debiasing changes it again"),
    ],
)
def test_a_summary_tells_whether_the_answer_is_a_habit(said: tuple[str, str, str], verdict: str) -> None:
    assert verdict in summary(*said)


def test_a_summary_says_who_is_right_only_where_that_is_known() -> None:
    judged = summary("a cup", "the dam", "a cup", expected="The dam\nthe wall")
    assert [part.count("right") for part in judged.split("<dt>")[1:]] == [0, 2, 0]  # its class, and the word
    assert "Expected: <strong>The dam; the wall</strong>" in judged
    assert "✓" not in summary("a cup", "the dam", "a cup") + summary("a", "b", "c")


def test_a_summary_says_where_no_answer_was_recognised_and_what_was_cut() -> None:
    shown = summary("", "the dam", "a cup", cut=True)
    assert "no answer recognised" in shown
    assert "did not follow the form" in shown
    assert "its end was left out" in shown


def test_what_a_model_or_visitor_writes_is_text_and_no_markup() -> None:
    shown = summary("<img src=x onerror=alert(1)>", "<b>", "x", expected="<script>alert(1)</script>")
    assert "<img" not in shown
    assert "<script" not in shown
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown

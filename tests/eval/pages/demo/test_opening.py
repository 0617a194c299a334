"""What `d2e demo` opens with: an example whose two answers differ, or the honest word that none does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, Answers, DemoModel
from eval.pages.demo.opening import Opening, find_opening
from eval.pages.demo.question import Question

EXAMPLES = [Question("qa", "It rained.", f"What {n}?") for n in range(3)]
MODEL = DemoModel("m", cast(Any, None), load_prompt_set("default"), 0.5, 8)


@dataclass
class Said:
    """Stands for the model: its plain and debiased answer to each example; None is one that is too long."""

    answers: list[tuple[str, str] | None]

    def answer(self, question: Question, alpha: float, limit: int) -> Answers:
        assert (alpha, limit) == (0.5, 8)
        said = self.answers[EXAMPLES.index(question)]
        if said is None:
            raise UserError("too long")
        plain, debiased = (f"The answer is: {text}" for text in said)
        return Answers(plain, debiased, "", done=True)


def opening(*answers: tuple[str, str] | None, patience: float = 60.0) -> Opening:
    return find_opening(MODEL, cast(Answerer, Said(list(answers))), EXAMPLES, patience=patience)


def test_the_first_example_with_two_answers_is_shown() -> None:
    found = opening(("barn", "barn"), ("barn", "garage"), ("a", "b"))
    assert (found.place, found.told) == (1, "The first of 2 examples tried whose two answers differ at α = 0.5.")
    assert found.answers is not None
    assert found.answers.debiased == "The answer is: garage"
    assert opening(("a", "b"), None, None).told == "The first example tried whose two answers differ at α = 0.5."


def test_where_none_differs_that_is_said() -> None:
    found = opening(("barn", "the Barn."), ("a", "a"), ("b", "b"))  # as they are scored, not as they are written
    assert found.place == 0
    assert found.told.startswith("In none of the 3 examples tried do the two answers differ at α = 0.5")


def test_a_slow_model_does_not_keep_the_page_waiting() -> None:
    assert opening(("a", "a"), ("a", "b"), None, patience=-1.0).told == "Its two answers are the same at α = 0.5."


def test_examples_that_cannot_be_answered_are_passed_over() -> None:
    assert opening(None, ("a", "b"), None).place == 1
    assert opening(None, None, None) == Opening(0, None, "")

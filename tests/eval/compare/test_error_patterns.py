"""Error patterns of wrong predictions: by a judge, and by taking the context away."""

from __future__ import annotations

from typing import Any

import pytest

from eval.compare.error_patterns import ErrorPattern, JudgedError, error_prompts, find_error_patterns, read_error
from eval.score.predictions import Prediction
from tests.factories import prediction
from tests.judge_server import JudgeServer, MakeJudge


def wrong(number: int = 0, **changes: Any) -> Prediction:
    fields: dict[str, Any] = {
        "id": f"p{number}",
        "format": "qa",
        "context": f"Rain fell for {number} days, so the river rose.",
        "question": "Why did the river rise?",
        "gold": ["rain", "rainfall"],
        "output": f"Snow melts in spring, {number}.\nThe answer is: the snow",
        "answer": ["the snow"],
    }
    return prediction(number, False, **{**fields, **changes})


SETS = {"format": "mcq", "options": ["a", "b", "c"], "gold": ["a"], "answer": ["b", "c"]}


def test_patterns_and_reasons_come_in_the_order_of_the_predictions(server: JudgeServer, judge: MakeJudge) -> None:
    words = {"0 days": "neglect", "1 days": "position", "2 days": "other", "3 days": "perhaps neglect"}
    server.reply = lambda user: "It is so.\nError: " + next(word for days, word in words.items() if days in user)
    asked = judge()
    assert find_error_patterns([wrong(number) for number in range(4)], asked) == [
        JudgedError(ErrorPattern.NEGLECT_CONTEXT, "It is so."),
        JudgedError(ErrorPattern.INACCURATE_POSITION, "It is so."),
        JudgedError(ErrorPattern.OTHER, "It is so."),
        JudgedError(ErrorPattern.UNDECIDED, "the judge named no pattern"),
    ]
    assert (asked.usage.reasked, asked.usage.undecided) == (1, 1)


@pytest.mark.parametrize(
    "reply", ["", "neglect", "Error: neglect_context", "Error: neglect, position", "Error: neglect\nor not"]
)
def test_a_pattern_is_not_guessed(reply: str) -> None:
    assert read_error(reply) is None


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "Context: Rain fell for 0 days, so the river rose.\nQuestion: Why did the river rise?"),
        ({}, "<<<\nSnow melts in spring, 0.\nThe answer is: the snow\n>>>\nRight answer:\nrain\nrainfall"),
        ({"format": "nli", "gold": ["positive"]}, "Premise: Rain fell"),
        ({"format": "scq", "options": ["rain", "snow"], "gold": ["rain"]}, "Options:\n(A) rain\n(B) snow"),
        ({"format": "mcq", "options": ["a", "b", "c"], "gold": ["a", "c"]}, "Right answer:\n(A) a\n(C) c"),
    ],
)
def test_a_prompt_shows_all_that_the_model_saw_and_wrote(changes: dict[str, Any], shown: str) -> None:
    (prompt,) = error_prompts([wrong(**changes)])
    assert shown in prompt.user
    for word in ("neglect", "position", "other"):
        assert f"\n{word} - " in prompt.system


@pytest.mark.parametrize(
    ("own", "without", "pattern"),
    [
        (wrong(), ["snow."], ErrorPattern.NEGLECT_CONTEXT),
        (wrong(), ["rain"], ErrorPattern.UNDECIDED),
        (wrong(), None, ErrorPattern.UNDECIDED),
        (wrong(extraction="none"), ["the snow"], ErrorPattern.OTHER),
        (wrong(context=" "), ["the snow"], ErrorPattern.UNDECIDED),
        (wrong(**SETS), ["c", "b"], ErrorPattern.NEGLECT_CONTEXT),
        (wrong(**SETS), ["b"], ErrorPattern.UNDECIDED),
    ],
)
def test_by_rule_an_answer_that_needs_no_context_neglects_it(
    own: Prediction, without: list[str] | None, pattern: ErrorPattern
) -> None:
    answers = None if without is None else {("stories", "p0"): without}
    (error,) = find_error_patterns([own], None, without_context=answers)
    assert error.pattern is pattern
    assert error.reason


def test_answers_of_another_dataset_with_the_same_id_are_not_compared() -> None:
    (error,) = find_error_patterns([wrong()], None, without_context={("other", "p0"): ["the snow"]})
    assert error.pattern is ErrorPattern.UNDECIDED


def test_a_right_prediction_has_no_error() -> None:
    with pytest.raises(ValueError, match="prediction 'p1' of 'stories': is right"):
        find_error_patterns([wrong(0), wrong(1, exact_match=1.0, f1=1.0)], None)

"""Why a prediction is wrong: context neglected, looked at the wrong place, or something else.

The three patterns are the paper's (section 2.2 and appendix C), where a judge finds them out from the whole output.
Without a judge there is one thing that can be measured: whether the answer stays the same when the context is taken
away. Then the context had no part in it, or the model would have guessed the same (with two labels it often would,
so the share of neglect by this rule is an upper bound).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from d2e_sft.judge.judge import Judge
from d2e_sft.judge.messages import Prompt
from d2e_sft.judge.templates import (
    JobTemplates,
    closing_value,
    load_templates,
    render_answers,
    render_options,
    without_closing,
)
from eval.score.normalise import same_answers
from eval.score.predictions import Prediction

# (dataset, id) → the answer that the same model gives without the context, as in `Prediction.answer`.
AnswersWithoutContext = Mapping[tuple[str, str], Sequence[str]]


class ErrorPattern(StrEnum):
    """What went wrong in a wrong prediction."""

    NEGLECT_CONTEXT = "neglect_context"
    INACCURATE_POSITION = "inaccurate_position"
    OTHER = "other"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class JudgedError:
    """The pattern of an error, and what speaks for it."""

    pattern: ErrorPattern
    reason: str


_WORDS = {
    "neglect": ErrorPattern.NEGLECT_CONTEXT,
    "position": ErrorPattern.INACCURATE_POSITION,
    "other": ErrorPattern.OTHER,
}


def find_error_patterns(
    wrong: Sequence[Prediction], judge: Judge | None, *, without_context: AnswersWithoutContext | None = None
) -> list[JudgedError]:
    """The error pattern of each wrong prediction, in order.

    Args:
        wrong: predictions that are not right.
        judge: None for rules only: an error is neglect if the answer is the same without the context, other if no
            answer was recognised, and undecided besides.
        without_context: needed by the rules alone; a prediction that it lacks is undecided.

    Raises:
        ValueError: a prediction is right.
        UserError: the judge cannot be asked, or not any more.
    """
    right = next((prediction for prediction in wrong if prediction.right), None)
    if right is not None:
        raise ValueError(f"prediction {right.id!r} of {right.dataset!r}: is right; expected wrong ones alone")
    if judge is None:
        return [_by_rule(prediction, without_context or {}) for prediction in wrong]
    judged = judge.ask(error_prompts(wrong), read_error, what="error patterns", reminder=_templates().reminder)
    return [error or JudgedError(ErrorPattern.UNDECIDED, "the judge named no pattern") for error in judged]


def error_prompts(wrong: Sequence[Prediction]) -> list[Prompt]:
    """What `find_error_patterns` asks about each prediction; for an estimate of its cost."""
    return [
        _templates().prompt(
            prediction.format,
            {
                "context": prediction.context,
                "question": prediction.question,
                "options": render_options(prediction.options),
                "output": prediction.output,
                "answer": render_answers(prediction.options, prediction.gold),
            },
            label=f"prediction {prediction.id!r} of {prediction.dataset!r}",
        )
        for prediction in wrong
    ]


def read_error(reply: str) -> JudgedError | None:
    """The pattern in the closing line of a reply, with the reasons above it; None where that line names none."""
    pattern = _WORDS.get(closing_value(reply, "Error") or "")
    return None if pattern is None else JudgedError(pattern, without_closing(reply))


def _by_rule(prediction: Prediction, without_context: AnswersWithoutContext) -> JudgedError:
    if not prediction.parsed:
        return JudgedError(ErrorPattern.OTHER, "the output holds no answer in the form that was asked for")
    if not prediction.context.strip():
        return JudgedError(ErrorPattern.UNDECIDED, "the sample has no context")
    other = without_context.get((prediction.dataset, prediction.id))
    if other is None:
        return JudgedError(ErrorPattern.UNDECIDED, "no answer without the context to compare with")
    if same_answers(other, prediction.answer):
        return JudgedError(ErrorPattern.NEGLECT_CONTEXT, "the answer is the same without the context")
    return JudgedError(ErrorPattern.UNDECIDED, "the answer is another without the context, so the context was used")


@cache
def _templates() -> JobTemplates:
    return load_templates(Path(__file__).with_name("error_prompts.yaml"))["error_pattern"]

"""Why a prediction is wrong: it neglects the context, looks at the wrong place, or something else.

The three patterns are the paper's (section 2.2 and appendix C), where a judge finds them in the whole output. Without
a judge one thing can be measured: whether the answer stays the same without the context. Then the context had no part
in it, or the model would have guessed the same, so the share of neglect by this rule is an upper bound.

The patterns are written to the run's folder, and checked against its predictions when they are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from d2e_sft.judge.judge import Judge, Prompt
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.judge.templates import closing_value, load_templates, without_closing
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from eval.compare.runs import ScoredRun
from eval.score.metrics import same_answers
from eval.score.predictions import Prediction, SampleKey

_templates = partial(load_templates, Path(__file__).with_name("error_prompts.yaml"), "error_pattern")

PATTERNS_FILE = "error_patterns.json"
# (dataset, id) → the answer that the same model gives without the context, as in `Prediction.answer`.
AnswersWithoutContext = Mapping[SampleKey, Sequence[str]]


class ErrorPattern(StrEnum):
    """What went wrong in a wrong prediction."""

    NEGLECT_CONTEXT = "neglect_context"
    INACCURATE_POSITION = "inaccurate_position"
    OTHER = "other"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class JudgedError:
    """The pattern of an error, and the reason for it."""

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
    """Find the error pattern of each wrong prediction, in order.

    Args:
        wrong: wrong predictions.
        judge: None applies the rule. Then an answer that is the same without the context is neglect, an unrecognised
            one is other, and the rest is undecided.
        without_context: answers for the rule.

    Raises:
        ValueError: a prediction is right.
        UserError: the judge cannot be asked, or not any more.
    """
    for right in (prediction for prediction in wrong if prediction.right):
        raise ValueError(f"prediction {right.id!r} of {right.dataset!r}: is right; expected only wrong ones")
    if judge is None:
        return [_by_rule(prediction, without_context or {}) for prediction in wrong]
    judged = judge.ask(error_prompts(wrong), read_error, what="error patterns", reminder=_templates().reminder)
    return [error or JudgedError(ErrorPattern.UNDECIDED, "the judge named no pattern") for error in judged]


def error_prompts(wrong: Sequence[Prediction]) -> list[Prompt]:
    """The prompt that `find_error_patterns` sends for each prediction."""
    return [_templates().prompt(one, "prediction", one.gold, output=one.output) for one in wrong]


def read_error(reply: str) -> JudgedError | None:
    """The pattern in a reply's closing line, with the reasons above it; None if that line names none."""
    pattern = _WORDS.get(closing_value(reply, "Error") or "")
    return None if pattern is None else JudgedError(pattern, without_closing(reply))


def relations_of(predictions: Iterable[Prediction]) -> list[str]:
    """The relations in order of appearance, followed by `all` if there are several."""
    relations: list[str] = list(dict.fromkeys(prediction.relation for prediction in predictions))
    return [*relations, "all"] if len(relations) > 1 else relations


def count_patterns(wrong: Sequence[Prediction], errors: Sequence[JudgedError]) -> dict[str, dict[str, int]]:
    """Relation → pattern → number of wrong predictions, with `all` if there are several relations."""
    return {
        relation: {
            pattern.value: sum(
                e.pattern is pattern and relation in ("all", p.relation) for p, e in zip(wrong, errors, strict=True)
            )
            for pattern in ErrorPattern
        }
        for relation in relations_of(wrong)
    }


def _by_rule(prediction: Prediction, without_context: AnswersWithoutContext) -> JudgedError:
    other, undecided = without_context.get((prediction.dataset, prediction.id)), ErrorPattern.UNDECIDED
    if not prediction.parsed:
        return JudgedError(ErrorPattern.OTHER, "the output holds no answer in the form that was asked for")
    if not prediction.context.strip():
        return JudgedError(undecided, "the sample has no context")
    if other is None:
        return JudgedError(undecided, "no answer without the context to compare with")
    if same_answers(other, prediction.answer):
        return JudgedError(ErrorPattern.NEGLECT_CONTEXT, "the answer is the same without the context")
    return JudgedError(undecided, "the answer is another without the context, so the context was used")


@dataclass(frozen=True)
class RunPatterns:
    """The error pattern of every wrong prediction of a run in order; `method` is `by rule` or the judge's name."""

    method: str
    errors: dict[SampleKey, JudgedError]


class _Error(BaseModel):
    dataset: str
    id: str
    pattern: ErrorPattern
    reason: str


class _Content(BaseModel):
    judge: dict[str, str | None]
    estimated_by_rule: bool
    errors: list[_Error]


def write_patterns(
    run: ScoredRun, wrong: Sequence[Prediction], errors: Sequence[JudgedError], judge: JudgeOptions
) -> Path:
    """Write the patterns and reasons as `error_patterns.json` to the run's folder."""
    listed = [
        {"dataset": p.dataset, "id": p.id, "pattern": error.pattern.value, "reason": error.reason}
        for p, error in zip(wrong, errors, strict=True)
    ]
    content = {
        "judge": judge.model_dump(include={"backend", "model"}),
        "estimated_by_rule": judge.backend == "rules",
        "counts": {pattern.value: sum(error.pattern is pattern for error in errors) for pattern in ErrorPattern},
        "errors": listed,
        "relations": count_patterns(wrong, errors),
    }
    write_json(run.folder / PATTERNS_FILE, with_checksums(content))
    return run.folder / PATTERNS_FILE


def read_patterns(run: ScoredRun) -> RunPatterns | None:
    """A run's error patterns, None without `d2e errors`; UserError if the file is damaged or about other answers."""
    path = run.folder / PATTERNS_FILE
    if not path.is_file():
        return None
    again = f"find the patterns again: d2e errors {run.path} --bench {run.folder.name}, or remove the file"
    content = read_results(_Content, path, "error patterns", again)
    found = {(one.dataset, one.id): JudgedError(one.pattern, one.reason) for one in content.errors}
    wrong = [key for key, prediction in run.predictions.items() if not prediction.right]
    strangers = sorted(found.keys() ^ set(wrong))
    if strangers:
        raise UserError(
            f"{path}: about {len(content.errors)} wrong answers, but predictions.jsonl holds {len(wrong)}; "
            f"{len(strangers)} are in one only, such as {strangers[0][1]!r} of {strangers[0][0]}",
            remedy=again,
        )
    method = "by rule" if content.estimated_by_rule else content.judge.get("model") or content.judge.get("backend")
    return RunPatterns(str(method), {key: found[key] for key in wrong})

"""What `d2e errors` leaves beside a run's predictions, read again and checked against them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from d2e_sft.data.sample import describe_validation_error
from d2e_sft.util.errors import UserError
from eval.compare.error_patterns import ErrorPattern, JudgedError
from eval.compare.runs import ScoredRun
from eval.score.predictions import SampleKey

PATTERNS_FILE = "error_patterns.json"


@dataclass(frozen=True)
class RunPatterns:
    """The error pattern of every wrong prediction of a run.

    Attributes:
        method: `by rule`, or the judge's name.
        by_rule: whether the patterns are an estimate by rule.
        errors: by sample, in the order of the predictions.
    """

    method: str
    by_rule: bool
    errors: dict[SampleKey, JudgedError]


class _Judge(BaseModel):
    backend: str
    model: str | None = None


class _Error(BaseModel):
    dataset: str
    id: str
    pattern: ErrorPattern
    reason: str


class _Content(BaseModel):
    judge: _Judge
    estimated_by_rule: bool
    errors: list[_Error]


def read_patterns(run: ScoredRun) -> RunPatterns | None:
    """A run's error patterns, or None where `d2e errors` was not called.

    Raises:
        UserError: the file is damaged, or about other wrong answers than the run's predictions hold.
    """
    path = run.folder / PATTERNS_FILE
    if not path.is_file():
        return None
    again = f"find the patterns again: d2e errors {run.path} --bench {run.folder.name}, or remove the file"
    try:
        content = _Content.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: not error patterns ({describe_validation_error(error)})", remedy=again) from None
    found = {(one.dataset, one.id): JudgedError(one.pattern, one.reason) for one in content.errors}
    wrong = [key for key, prediction in run.predictions.items() if not prediction.right]
    strangers = sorted(found.keys() ^ set(wrong))
    if strangers or len(found) != len(content.errors):
        example = f", such as {strangers[0][1]!r} of {strangers[0][0]}" if strangers else ""
        raise UserError(
            f"{path}: about {len(content.errors)} wrong answers, but predictions.jsonl beside it holds {len(wrong)}; "
            f"{len(strangers)} are in one only{example}",
            remedy=again,
        )
    method = "by rule" if content.estimated_by_rule else content.judge.model or content.judge.backend
    return RunPatterns(method, content.estimated_by_rule, {key: found[key] for key in wrong})

"""What a judge says about a run's answers: why wrong ones are wrong, and whether free ones keep to their contexts.

A judge sorts errors into the paper's patterns (section 2.2 and appendix C). There, neglect means that an answer
hallucinates or deviates from the context. Without a judge another thing is measured, which has its own name: the
answer is the same without the context. Then the context had no part in it, or the model would have guessed the same.

A judge's verdicts on free answers add what shares of words cannot tell: "within 30 days" from "not within 30 days".
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel

from d2e_sft.judge.judge import Judge, JudgePrompt
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.judge.templates import JobTemplates, closing_value, templates_of, without_closing
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from eval.compare.runs import ScoredRun
from eval.score.faithfulness import has_free_answer
from eval.score.predictions import Prediction, SampleKey

PATTERNS_FILE, JUDGED_FILE = "error_patterns.json", "judged_answers.json"
# (dataset, id) → the answer that the same model gives without the context, as in `Prediction.answer`.
AnswersWithoutContext = Mapping[SampleKey, Sequence[str]]


class ErrorPattern(StrEnum):
    """What went wrong in a wrong prediction."""

    NEGLECT_CONTEXT = "neglect_context"
    INACCURATE_POSITION = "inaccurate_position"
    UNCHANGED = "same_without_context"  # by rule only
    OTHER = "other"
    UNDECIDED = "undecided"


PATTERN_NAMES = {
    ErrorPattern.NEGLECT_CONTEXT: "neglects the context",
    ErrorPattern.INACCURATE_POSITION: "looks at the wrong place",
    ErrorPattern.UNCHANGED: "same without the context",
    ErrorPattern.OTHER: "other",
    ErrorPattern.UNDECIDED: "undecided",
}
_BY_RULE = "by rule"
_WORDS = {
    "neglect": ErrorPattern.NEGLECT_CONTEXT,
    "position": ErrorPattern.INACCURATE_POSITION,
    "other": ErrorPattern.OTHER,
}


@dataclass(frozen=True)
class JudgedError:
    pattern: ErrorPattern
    reason: str


@dataclass(frozen=True)
class RunPatterns:
    """The error pattern of every wrong prediction of a run in order; `method` is `by rule` or the judge's name."""

    method: str
    errors: dict[SampleKey, JudgedError]

    @property
    def possible(self) -> set[ErrorPattern]:
        """The patterns that this method can find."""
        by_rule = {ErrorPattern.UNCHANGED, ErrorPattern.OTHER, ErrorPattern.UNDECIDED}
        return by_rule if self.method == _BY_RULE else {*ErrorPattern} - {ErrorPattern.UNCHANGED}


def find_error_patterns(
    wrong: Sequence[Prediction], judge: Judge | None, *, without_context: AnswersWithoutContext | None = None
) -> list[JudgedError]:
    """Find the error pattern of each wrong prediction, in order; UserError if the judge does not answer.

    Without a judge the rule finds answers that are the same without the context. An unrecognised one is other, and the
    rest is undecided.
    """
    if judge is None:
        return [_by_rule(prediction, without_context or {}) for prediction in wrong]
    templates = _templates("error", judge)
    judged = judge.ask(
        error_prompts(wrong, judge),
        lambda reply: read_error(templates.closed(reply)),
        job="error patterns",
        reminder=templates.reminder,
    )
    return [error or JudgedError(ErrorPattern.UNDECIDED, "the judge named no pattern") for error in judged]


def error_prompts(wrong: Sequence[Prediction], judge: Judge | None = None) -> list[JudgePrompt]:
    return [_templates("error", judge).prompt(p, "prediction", p.gold, output=p.output) for p in wrong]


def read_error(reply: str) -> JudgedError | None:
    """The pattern in a reply's closing line, with the reasons above it; None if that line names none."""
    pattern = _WORDS.get(closing_value(reply, "Error") or "")
    return None if pattern is None else JudgedError(pattern, without_closing(reply))


def _templates(name: str, judge: Judge | None) -> JobTemplates:
    job = {"error": "error_pattern", "answer": "free_answer"}[name]
    return templates_of(judge, Path(__file__).with_name(f"{name}_prompts.yaml"), job)


def _by_rule(prediction: Prediction, without_context: AnswersWithoutContext) -> JudgedError:
    without, undecided = without_context.get((prediction.dataset, prediction.id)), ErrorPattern.UNDECIDED
    if not prediction.parsed:
        return JudgedError(ErrorPattern.OTHER, "the output holds no answer in the form that was asked for")
    if not prediction.context.strip():
        return JudgedError(undecided, "the sample has no context")
    if without is None:
        return JudgedError(undecided, "no answer without the context to compare with")
    if prediction.says_same(without):
        return JudgedError(ErrorPattern.UNCHANGED, "the answer is the same without the context")
    return JudgedError(undecided, "the answer is another without the context, so the context was used")


def relations_of(predictions: Iterable[Prediction]) -> list[str]:
    """The relations in order of appearance, followed by `all` if there are several."""
    relations: list[str] = list(dict.fromkeys(prediction.relation for prediction in predictions))
    return [*relations, "all"] if len(relations) > 1 else relations


def count_patterns(run: ScoredRun, errors: Mapping[SampleKey, JudgedError]) -> dict[str, Counter[ErrorPattern]]:
    """Relation → number of wrong predictions by pattern, with `all` if the run has several relations."""
    return {
        relation: Counter(
            error.pattern for key, error in errors.items() if relation in ("all", run.predictions[key].relation)
        )
        for relation in relations_of(run.predictions.values())
    }


class _Error(BaseModel):
    dataset: str
    id: str
    output_sha256: str
    pattern: ErrorPattern
    reason: str


class _Errors(BaseModel):
    judge: dict[str, str | None]
    estimated_by_rule: bool
    errors: list[_Error]


def write_patterns(run: ScoredRun, errors: Mapping[SampleKey, JudgedError], judge: JudgeOptions) -> Path:
    """Write the patterns and reasons as `error_patterns.json` to the run's folder."""
    relations = count_patterns(run, errors).items()
    counts = Counter(error.pattern for error in errors.values())
    content = {
        "judge": judge.described,
        "estimated_by_rule": judge.backend == "rules",
        "counts": {pattern.value: counts[pattern] for pattern in ErrorPattern},
        "errors": [
            {
                **{"dataset": key[0], "id": key[1], "output_sha256": output_digest(run.predictions[key])},
                **{"pattern": error.pattern.value, "reason": error.reason},
            }
            for key, error in errors.items()
        ],
        "relations": {name: {pattern.value: tally[pattern] for pattern in ErrorPattern} for name, tally in relations},
    }
    write_json(run.folder / PATTERNS_FILE, with_checksums(content))
    return run.folder / PATTERNS_FILE


def read_patterns(run: ScoredRun) -> RunPatterns | None:
    """A run's error patterns, None without `d2e errors`; UserError if the file is damaged or about other answers."""
    path = run.folder / PATTERNS_FILE
    if not path.is_file():
        return None
    remedy = f"find the patterns again: d2e errors {run.path} --bench {run.folder.name}, or remove the file"
    content = read_results(_Errors, path, "error patterns", remedy)
    by_key = {(error.dataset, error.id): JudgedError(error.pattern, error.reason) for error in content.errors}
    digests = {(error.dataset, error.id): error.output_sha256 for error in content.errors}
    wrong = {key: output_digest(prediction) for key, prediction in run.predictions.items() if not prediction.right}
    strangers = sorted({key for key, _ in digests.items() ^ wrong.items()})
    if strangers:
        raise UserError(
            f"{path}: about {len(digests)} wrong answers, but predictions.jsonl holds {len(wrong)}; {len(strangers)} "
            f"are in one only or differ, such as {strangers[0][1]!r} of {strangers[0][0]}",
            remedy=remedy,
        )
    method = _BY_RULE if content.estimated_by_rule else content.judge.get("model") or content.judge.get("backend")
    return RunPatterns(str(method), {key: by_key[key] for key in wrong})


class Verdict(BaseModel):
    """The judge's verdict: does the context support all of an answer, and does it agree with the gold answer?"""

    supported: bool
    correct: bool
    reason: str


class _JudgedAnswer(BaseModel):
    dataset: str
    id: str
    output_sha256: str
    verdict: Verdict | None  # None: the judge named none


class _JudgedAnswers(BaseModel):
    judge: dict[str, str | None]
    answers: list[_JudgedAnswer]


def judge_answers(run: ScoredRun, judge: Judge, options: JudgeOptions) -> list[Verdict | None]:
    """Have a judge check a run's free answers, and keep its verdicts with the run; None: it named none, twice."""
    free = [prediction for prediction in run.predictions.values() if has_free_answer(prediction)]
    templates = _templates("answer", judge)
    prompts = [templates.prompt(p, "answer", p.gold, output=" ".join(p.answer)) for p in free]
    verdicts = judge.ask(
        prompts,
        lambda reply: read_verdict(templates.closed(reply)),
        job="free answers",
        reminder=templates.reminder,
    )
    judge.require_usable("free answers", sum(verdict is not None for verdict in verdicts), len(verdicts))
    answers = [
        _JudgedAnswer(dataset=p.dataset, id=p.id, output_sha256=output_digest(p), verdict=verdict)
        for p, verdict in zip(free, verdicts, strict=True)
    ]
    content = _JudgedAnswers(judge=options.described, answers=answers)
    write_json(run.folder / JUDGED_FILE, with_checksums(content.model_dump()))
    return verdicts


def read_judged(run: ScoredRun) -> dict[SampleKey, Verdict] | None:
    """The decided verdicts on a run's answers, None without a judge; UserError for a damaged or outdated file."""
    path = run.folder / JUDGED_FILE
    if not path.is_file():
        return None
    remedy = f"judge them again: d2e eval … --judge, as {run.folder.name} was scored; or remove the file"
    judged = read_results(_JudgedAnswers, path, "verdicts on answers", remedy).answers
    digests = {(a.dataset, a.id): a.output_sha256 for a in judged}
    kept = {key: output_digest(p) for key, p in run.predictions.items() if has_free_answer(p)}
    changed = [key for key, digest in kept.items() if digests.get(key) != digest]
    if changed:
        raise UserError(
            f"{path}: {len(changed)} of the {len(kept)} answers in predictions.jsonl are not those that were judged, "
            f"such as {changed[0][1]!r} of {changed[0][0]}",
            remedy,
        )
    return {(a.dataset, a.id): a.verdict for a in judged if a.verdict and (a.dataset, a.id) in kept}


def read_verdict(reply: str) -> Verdict | None:
    """The verdict in a reply's closing line, with the reasons above it; None if that line names none."""
    words = [word.strip() for word in (closing_value(reply, "Verdict") or "").split(",")]
    if len(words) != 2 or words[0] not in ("supported", "unsupported") or words[1] not in ("correct", "incorrect"):
        return None
    return Verdict(supported=words[0] == "supported", correct=words[1] == "correct", reason=without_closing(reply))


def output_digest(prediction: Prediction) -> str:
    """Return the SHA-256 of an output, by which a judge's findings are known to be about it."""
    return hashlib.sha256(prediction.output.encode()).hexdigest()

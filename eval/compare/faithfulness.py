"""How far free answers keep to their contexts: by words, and by a judge's verdicts; of several runs side by side.

Shares of words cannot distinguish "within 30 days" from "not within 30 days"; a judge can. The verdicts are written to
the run's folder, and checked against its predictions when they are read again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from d2e_sft.judge.judge import Judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.judge.templates import closing_value, load_templates, without_closing
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results, with_checksums, write_json
from eval.compare.paired import ComparedRun, changes_to_first, paired_change
from eval.compare.runs import ScoredRun
from eval.score.faithfulness import MEASURES, has_free_answer, lacks_answer, measures_of
from eval.score.predictions import Prediction, SampleKey
from eval.score.statistics import bootstrap_average

JUDGED_FILE = "judged_answers.json"
_SUPPORTED = {"supported": True, "unsupported": False}
_CORRECT = {"correct": True, "incorrect": False}


class Verdict(BaseModel):
    """The judge's verdict: does the context support all of an answer, and does it agree with the gold answer?"""

    supported: bool
    correct: bool
    reason: str


class _Judged(BaseModel):
    dataset: str
    id: str
    output_sha256: str
    verdict: Verdict | None  # None: the judge named none


class _Content(BaseModel):
    judge: dict[str, str | None]
    answers: list[_Judged]


def judge_answers(run: ScoredRun, judge: Judge, options: JudgeOptions) -> list[Verdict | None]:
    """Ask a judge about a run's free answers to contexts, and write the verdicts to the run's folder.

    Returns a verdict for each answer in order; None where the judge named none, twice. UserError if the judge cannot
    be asked, or not any more.
    """
    free = [prediction for prediction in run.predictions.values() if has_free_answer(prediction)]
    templates = load_templates(Path(__file__).with_name("answer_prompts.yaml"), "free_answer")
    prompts = [templates.prompt(one, "answer", one.gold, output=" ".join(one.answer)) for one in free]
    verdicts = judge.ask(prompts, read_verdict, what="free answers", reminder=templates.reminder)
    judge.require_usable("free answers", sum(verdict is not None for verdict in verdicts), len(verdicts))
    content = _Content(
        judge={"backend": options.backend, "model": options.model},
        answers=[
            _Judged(dataset=p.dataset, id=p.id, output_sha256=_digest(p), verdict=verdict)
            for p, verdict in zip(free, verdicts, strict=True)
        ],
    )
    write_json(run.folder / JUDGED_FILE, with_checksums(content.model_dump()))
    return verdicts


def read_judged(run: ScoredRun) -> dict[SampleKey, Verdict] | None:
    """The decided verdicts on a run's answers, None without a judge; UserError for a damaged or outdated file."""
    path = run.folder / JUDGED_FILE
    if not path.is_file():
        return None
    again = f"judge them again: d2e eval … --judge, as {run.folder.name} was scored; or remove the file"
    judged = read_results(_Content, path, "verdicts on answers", again).answers
    about = {(one.dataset, one.id): one.output_sha256 for one in judged}
    held = {key: _digest(p) for key, p in run.predictions.items() if has_free_answer(p)}
    changed = [key for key, digest in held.items() if about.get(key) != digest]
    if changed:
        raise UserError(
            f"{path}: {len(changed)} of the {len(held)} answers in predictions.jsonl are not those that were judged, "
            f"such as {changed[0][1]!r} of {changed[0][0]}",
            again,
        )
    return {(one.dataset, one.id): one.verdict for one in judged if one.verdict and (one.dataset, one.id) in held}


def read_verdict(reply: str) -> Verdict | None:
    """The verdict in a reply's closing line, with the reasons above it; None if that line names none."""
    words = [word.strip() for word in (closing_value(reply, "Verdict") or "").split(",")]
    if len(words) != 2 or words[0] not in _SUPPORTED or words[1] not in _CORRECT:
        return None
    return Verdict(supported=_SUPPORTED[words[0]], correct=_CORRECT[words[1]], reason=without_closing(reply))


def _digest(prediction: Prediction) -> str:
    return hashlib.sha256(prediction.output.encode()).hexdigest()


WORDS = tuple(MEASURES.values())
JUDGED = ("supported", "correct")


@dataclass(frozen=True)
class Faithfulness:
    """All runs on one dataset's free answers, or on those of `all` datasets.

    `lacking` is the number of rows whose context lacks the answer, which a refusal is about.
    """

    dataset: str
    n: int
    lacking: int
    runs: tuple[ComparedRun, ...]

    def has(self, measures: Sequence[str]) -> bool:
        """Whether some run has one of these measures."""
        return any(name in run.scores for run in self.runs for name in measures)


def compare_faithfulness(runs: Sequence[ScoredRun], *, seed: int = 0) -> tuple[Faithfulness, ...]:
    """Compare free answers to contexts by dataset and, if there are several, over all; empty without such answers."""
    datasets: dict[str, list[SampleKey]] = {}
    for key, prediction in runs[0].predictions.items():
        if has_free_answer(prediction):
            datasets.setdefault(prediction.dataset, []).append(key)
    if len(datasets) > 1:
        datasets["all"] = [key for keys in datasets.values() for key in keys]
    values = [_values(run) for run in runs]
    rows = []
    for dataset, keys in datasets.items():
        chosen = [
            {name: [found] for name, own in run.items() if (found := {key: own[key] for key in keys if key in own})}
            for run in values
        ]
        scores = [
            {name: bootstrap_average([list(found.values())], seed=seed) for name, [found] in own.items()}
            for own in chosen
        ]
        changes = changes_to_first(chosen, partial(paired_change, seed=seed))
        compared = map(ComparedRun, [run.label for run in runs], scores, changes)
        lacking = sum(lacks_answer(runs[0].predictions[key]) for key in keys)
        rows.append(Faithfulness(dataset, len(keys), lacking, tuple(compared)))
    return tuple(rows)


def _values(run: ScoredRun) -> dict[str, dict[SampleKey, float]]:
    """Measure → sample → value."""
    judged = read_judged(run) or {}
    values: dict[str, dict[SampleKey, float]] = {name: {} for name in (*WORDS, *JUDGED)}
    for key, prediction in run.predictions.items():
        if has_free_answer(prediction):
            found = {MEASURES[name]: value for name, value in measures_of(prediction).items()}
            if verdict := judged.get(key):
                found |= {"supported": float(verdict.supported), "correct": float(verdict.correct)}
            for name, value in found.items():
                values[name][key] = value
    return values

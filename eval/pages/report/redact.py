"""Runs without the texts of some datasets: not every dataset may be passed on, and a report is made to be.

Scores, labels of nli, and which sample was right stay, as do ids: who has the dataset can look a sample up.
Whatever came from a text goes, and so does what a model said, which may quote it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from d2e_sft.util.errors import UserError, did_you_mean
from eval.compare.runs import ScoredRun
from eval.score.predictions import Prediction


def datasets_of(run: ScoredRun) -> list[str]:
    """Names of the datasets that a run was scored on, in order of appearance."""
    return list(dict.fromkeys(dataset for dataset, _ in run.predictions))


def check_datasets(names: Collection[str], run: ScoredRun) -> None:
    """Make sure that these are datasets of the run.

    Raises:
        UserError: one is not.
    """
    known = datasets_of(run)
    for name in names:
        if name not in known:
            raise UserError(
                f"--no-texts-of {name}: no dataset of the benchmark, which has {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )


def without_texts(runs: Sequence[ScoredRun], datasets: Collection[str]) -> list[ScoredRun]:
    """The runs with predictions of these datasets that hold no text."""
    return [
        replace(
            run,
            predictions={
                key: redacted(prediction) if prediction.dataset in datasets else prediction
                for key, prediction in run.predictions.items()
            },
        )
        for run in runs
    ]


def redacted(prediction: Prediction) -> Prediction:
    """The prediction without context, question, options and output; gold and answer stay where they are labels."""
    labels = prediction.format == "nli"
    return prediction.model_copy(
        update={
            "context": "",
            "question": "",
            "options": [],
            "output": "",
            "gold": prediction.gold if labels else [],
            "answer": prediction.answer if labels and prediction.parsed else [],
        }
    )

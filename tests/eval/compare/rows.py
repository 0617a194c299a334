"""Rows with subsets, and results of systems as `d2e eval` leaves them, written for the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.score.measures import MEASURES_FILE, Measure, digest, shares, write_measures
from eval.score.predictions import Prediction
from eval.score.scores import write_scores
from eval.systems.run import TABLES_FILE
from tests.factories import story

GOLD = digest({"q": "more"})


def habit_rows(aligned: int, conflict: int, *, dataset: str = "habit", of: int = 40) -> list[Prediction]:
    """So many right of each subset's `of` rows; wrong conflict rows are answered with the habit."""
    rows = [
        story(n, "aligned", "garage" if n < aligned else "attic", habit="garage", dataset=dataset) for n in range(of)
    ]
    return rows + [
        story(1000 + n, "conflict", "garage" if n < conflict else "kitchen", dataset=dataset) for n in range(of)
    ]


def accuracy(right: Sequence[float], *, name: str = "accuracy", gold: str = GOLD) -> list[Measure]:
    return shares(name, "questions", gold, {f"q{n}": value for n, value in enumerate(right)})


def save_result(run: Path, measures: Sequence[Measure], bench: str = "wiqa", **scores: object) -> Path:
    folder = run / "eval" / bench
    folder.mkdir(parents=True)
    content: Mapping[str, object] = {"system": bench.split("-", maxsplit=1)[0], "model": "m", **scores}
    write_measures(measures, folder)
    (folder / TABLES_FILE).write_text("| what | score |\n|---|---|\n")
    write_scores(folder, content, [MEASURES_FILE, TABLES_FILE])
    return run

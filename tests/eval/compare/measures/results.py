"""Results of systems as `d2e eval` leaves them, written for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.compare.measures.measure import Measure, digest, shares, write_measures

GOLD = digest({"q": "more"})


def accuracy(right: Sequence[float], *, name: str = "accuracy", gold: str = GOLD) -> list[Measure]:
    return shares(name, "questions", gold, {f"q{n}": value for n, value in enumerate(right)})


def save_result(run: Path, measures: Sequence[Measure], bench: str = "wiqa", **scores: object) -> Path:
    folder = run / "eval" / bench
    folder.mkdir(parents=True)
    content: Mapping[str, object] = {"system": bench.split("-", maxsplit=1)[0], "model": "m", **scores}
    (folder / "scores.json").write_text(json.dumps(content))
    write_measures(measures, folder)
    return run

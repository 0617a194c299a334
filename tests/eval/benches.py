"""Small benchmarks on disk, and what `d2e eval` leaves of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample, write_samples
from tests.command import d2e
from tests.tiny import make_sample

LABELS = ("positive", "negative")
QUICK = ("--max-new-tokens", 6, "--batch-size", 3)


def bench_rows(count: int = 8) -> list[EventSample]:
    """Half qa, half nli, of different lengths."""
    return [bench_row(number) for number in range(count)]


def bench_row(number: int, **changes: Any) -> EventSample:
    """One row of the test split; odd ones are nli."""
    fields: dict[str, Any] = {
        "split": "test",
        "context": f"It rained {number} days. " + "Roads froze. " * (number % 5),
    }
    if number % 2:
        fields |= {"format": "nli", "answers": [LABELS[number // 2 % 2]]}
    return make_sample(number, **{**fields, **changes})


def train_rows(count: int = 12, **changes: Any) -> list[EventSample]:
    """Rows of the train split that share no context with a test row."""
    rows = []
    for number in range(count):
        row = bench_row(number, split="train", id=f"t{number}", context=f"Snow fell on street {number} at noon.")
        rows.append(row.model_copy(update=changes))
    return rows


def save_bench(folder: Path, tests: Sequence[EventSample], trains: Sequence[EventSample] = ()) -> Path:
    """A folder as `d2e data build` leaves it, without a manifest."""
    write_samples(tests, folder / "test.parquet")
    if trains:
        write_samples(trains, folder / "train.parquet")
    return folder


def save_suite(folder: Path, suite: str | None, tests: Sequence[EventSample], **manifest: Any) -> Path:
    """The same with a manifest."""
    save_bench(folder, tests)
    (folder / "manifest.json").write_text(json.dumps({"project": "d2e-sft", "suite": suite, **manifest}))
    return folder


def evaluate(world: Path, run: Path, *arguments: str | Path | int) -> int:
    """`d2e eval` of WORLD/model on WORLD/bench, a few tokens an answer."""
    return d2e("eval", world / "model", "--bench", world / "bench", "--out", run, *QUICK, *arguments)


def predictions(run: Path, bench: str = "bench", stem: str = "predictions") -> list[dict[str, Any]]:
    """The rows of a run's `predictions.jsonl`, or of another file of results beside it."""
    text = (run / "eval" / bench / f"{stem}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def scores_of(run: Path, bench: str = "bench") -> dict[str, Any]:
    """The content of a run's `scores.json`."""
    content: dict[str, Any] = json.loads((run / "eval" / bench / "scores.json").read_text(encoding="utf-8"))
    return content


def without_the_clock(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without what may differ from machine to machine."""
    return {key: value for key, value in scores.items() if key not in ("seconds", "environment")}

"""Results that were altered after they were written are neither shown, compared, exported nor pushed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.files import with_checksums
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import make_run as make_trained
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run as score_piper
from tests.factories import make_world, scores_of

READERS = ("compare", "report", "table")
Alter = Callable[[Path], Any]


def edit(name: str, old: str, new: str) -> Alter:
    """Replace the first such text in a file of results."""

    def alter(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return alter


def overwrite(name: str, text: str) -> Alter:
    return lambda folder: (folder / name).write_text(text)


def remove(name: str) -> Alter:
    return lambda folder: (folder / name).unlink()


def without_record(folder: Path) -> None:
    """The predictions edited, and what tells it removed."""
    edit("predictions.jsonl", '"exact_match":0.0', '"exact_match":1.0')(folder)
    remove("predictions.decoding.json")(folder)


def calls(run: Path, bench: str) -> dict[str, list[str | Path]]:
    """The commands that read results."""
    read: dict[str, list[str | Path]] = {name: [name, run, "--bench", bench] for name in (*READERS, "errors")}
    read["report"] += ["--out", run.parent / "report.html"]
    return {**read, "export": ["export", run, run.parent / "out"], "push": ["push", run, "a/b", "--dry-run"]}


SCORES = "scores.json"
ROWS: dict[str, tuple[Alter, str]] = {
    "an edited mean": (edit(SCORES, '"mean": 0.', '"mean": 0.9'), f"{SCORES}: was changed after it was written"),
    "NaN": (edit(SCORES, '"mean": 0.', '"mean": NaN, "x": 0.'), f"{SCORES}: was changed after it was written"),
    "no checksums": (edit(SCORES, '"checksums"', '"sums"'), f"{SCORES}: has no checksums"),
    "an empty file": (overwrite(SCORES, ""), SCORES),
    "null": (overwrite(SCORES, "null"), SCORES),
    "a part": (lambda folder: (folder / SCORES).write_bytes((folder / SCORES).read_bytes()[:200]), SCORES),
    "no predictions": (remove("predictions.jsonl"), "predictions.jsonl: is missing; scores.json has its SHA-256"),
    "edited predictions": (without_record, "predictions.jsonl: was changed; scores.json has its SHA-256"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a model, and scores of rows and of a related system."""
    run = make_trained(tmp_path)
    score_piper(run)
    return save_result(run, accuracy([1, 0, 1]))


@pytest.mark.parametrize(("alter", "said"), ROWS.values(), ids=ROWS)
def test_altered_scores_of_rows_are_used_nowhere(run: Path, alter: Alter, said: str) -> None:
    alter(run / "eval" / "piper")
    for call in calls(run, "piper").values():
        assert said in refusal_of(*call)


RECORD = "predictions.decoding.json"
RECORDS: dict[str, tuple[Alter, str]] = {
    "none": (remove(RECORD), f"{RECORD}: cannot be read"),
    "an empty file": (overwrite(RECORD, ""), f"{RECORD}: not the record of a decoding"),
    "an empty object": (overwrite(RECORD, "{}"), f"{RECORD}: has no predictions_sha256"),
    "another checksum": (edit(RECORD, '"predictions_sha256": "', '"predictions_sha256": "0'), "was changed"),
    "none yet": (edit(RECORD, '"predictions_sha256": ', '"predictions_sha256": null, "x": '), "was interrupted"),
}


@pytest.mark.parametrize(("alter", "said"), RECORDS.values(), ids=RECORDS)
def test_decoded_predictions_need_their_record(tmp_path: Path, alter: Alter, said: str) -> None:
    run = score_piper(tmp_path / "run", engine="transformers")
    alter(run / "eval" / "piper")
    for name in ("compare", "report", "errors"):
        assert said in refusal_of(*calls(run, "piper")[name])


def test_an_export_keeps_verifiable_scores(run: Path, tmp_path: Path) -> None:
    output_of("export", run, tmp_path / "out")
    output_of("push", tmp_path / "out", "a/b", "--dry-run")
    assert scores_of(tmp_path / "out", "piper")["bench"] == scores_of(run, "piper")["bench"]
    edit(SCORES, '"mean": 0.', '"mean": 0.9')(tmp_path / "out" / "eval" / "piper")
    assert "scores.json: was changed" in refusal_of("push", tmp_path / "out", "a/b", "--dry-run")


def test_answers_that_were_decoded_elsewhere_are_scored_and_compared(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world")
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps({"id": f"s{n}", "output": "positive"}) + "\n" for n in range(8)))
    output_of("score", "rows", "--predictions", answers, "--gold", world / "bench", "--out", tmp_path / "theirs")
    output_of("compare", tmp_path / "theirs", "--bench", "bench")
    (tmp_path / "theirs/eval/bench/scores.json").write_text(json.dumps(with_checksums({"model": "x"})))
    assert "not the scores of a run" in refusal_of("compare", tmp_path / "theirs", "--bench", "bench")

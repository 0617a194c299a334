"""Answers to unlabelled rows: the same as `d2e eval` decodes, in order, by id, whatever the file's format."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from d2e_sft.data.sample import write_samples
from d2e_sft.util.errors import UserError
from data_builders.own_data.questions import read_questions
from eval.run import passes as module
from eval.run.evaluate import evaluate_model
from eval.run.options import EvalOptions
from eval.run.predict import Answered, predict, trained_relation, write_answers
from tests.factories import bench_rows, save_bench
from tests.tiny import make_sample, save_tiny_model

OPTIONS = EvalOptions(alpha=0.5, max_new_tokens=6, batch_size=3)
ROWS = [
    {"id": f"t{n}", "context": f"Rain fell on day {n}. " * (1 + n % 3) + "The river rose.", "question": f"What {n}?"}
    for n in (4, 1, 3, 0, 2, 7)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model"), seed=3))


def written(folder: Path, ending: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    file = folder / f"questions{ending}"
    if ending == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        getattr(pd.DataFrame(rows), f"to_{ending.removeprefix('.')}")(file, index=False)
    return file


def test_a_run_is_asked_in_the_words_that_it_was_trained_with(tmp_path: Path) -> None:
    assert trained_relation("someone/model") == "none"
    for ending in ("parquet", "jsonl"):
        run_folder = tmp_path / ending
        rows = run_folder / f"train.{ending}"
        write_samples([make_sample(relation="causal")], rows)
        (run_folder / "recipe.yaml").write_text(f"data: {{train: {rows}}}\ntrain: {{output_dir: x}}\n")
        assert trained_relation(str(run_folder)) == "causal"
        rows.write_text("damaged")
        assert trained_relation(str(run_folder)) == "none"


def run(model: str, file: Path, out: Path, options: EvalOptions = OPTIONS, **how: Any) -> Answered:
    samples, bad = read_questions(file, **{"mapping": None, "fmt": None, "skip_bad": options.skip_bad, **how})
    return predict(model, file, samples, bad, out, options)


def read(out: Path) -> list[dict[str, Any]]:
    if out.suffix == ".jsonl":
        return [json.loads(line) for line in out.read_text().splitlines()]
    if out.suffix == ".parquet":
        return list(pq.read_table(out).to_pylist())
    with out.open(newline="") as source:
        return list(csv.DictReader(source))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_every_row_is_answered_in_order_and_by_id(tmp_path: Path, model: str, ending: str) -> None:
    answered = run(model, written(tmp_path, ending), out := tmp_path / f"answers{ending}")
    rows = read(out)
    assert [row["id"] for row in rows] == [row["id"] for row in ROWS]
    assert [row["question"] for row in rows] == [row["question"] for row in ROWS]
    assert list(rows[0]) == ["id", "question", "answer", "output", "read"]
    assert (answered.rows, answered.bad) == (6, 0)
    assert answered.unread == sum(row["read"] == "none" for row in rows)


def test_the_outputs_are_those_of_an_evaluation_of_the_same_rows(tmp_path: Path, model: str) -> None:
    benched = [row.model_copy(update={"context": row.context.strip()}) for row in bench_rows()]
    save_bench(tmp_path / "bench", benched)
    evaluate_model(model, tmp_path / "bench", run=tmp_path / "run", options=OPTIONS)
    expected = read(tmp_path / "run" / "eval" / "bench" / "predictions.jsonl")
    # The benchmark's own rows, without what is to be found out.
    rows = [
        {key: row[key] for key in ("id", "context", "question", "options", "format", "relation") if row[key]}
        for row in expected
    ]
    run(model, written(tmp_path, ".jsonl", rows), tmp_path / "answers.jsonl")
    found = read(tmp_path / "answers.jsonl")
    assert [row["output"] for row in found] == [row["output"] for row in expected]
    assert [row["read"] for row in found] == [row["extraction"] for row in expected]
    assert {row["format"] for row in expected} > {"qa"}, "several formats in one file"


def test_a_broken_off_call_goes_on_and_one_with_other_options_is_refused(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = written(tmp_path, ".jsonl"), tmp_path / "answers.jsonl"
    run(model, file, tmp_path / "whole.jsonl")
    real = module.make_engine

    def broken(*arguments: Any) -> Any:
        engine = real(*arguments)
        generate = engine.generate

        def stops(pairs: Any, decoding: Any) -> Iterator[Any]:
            yield from generate(pairs[:3], decoding)
            raise UserError("the machine was switched off")

        engine.generate = stops  # type: ignore[method-assign]
        return engine

    monkeypatch.setattr(module, "make_engine", broken)
    with pytest.raises(UserError, match="3 of 6 answers are kept"):
        run(model, file, out)
    assert not out.exists()
    monkeypatch.setattr(module, "make_engine", real)
    with pytest.raises(UserError, match=r"--alpha: 0.5 → 0.9"):
        run(model, file, out, EvalOptions(alpha=0.9, max_new_tokens=6, batch_size=3))
    answered = run(model, file, out)
    assert answered.record["resumed"] == 3
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    monkeypatch.setattr(module, "make_engine", None)  # a finished call decodes nothing again
    out.unlink()
    run(model, file, out)
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_options_are_scored_and_several_answers_kept_apart(tmp_path: Path, model: str) -> None:
    rows = [{**row, "options": "the river|the road|the sun"} for row in ROWS[:2]]
    file = written(tmp_path, ".csv", rows)
    run(model, file, tmp_path / "a.jsonl", EvalOptions(answer="likelihood"))
    for row in read(tmp_path / "a.jsonl"):
        assert row["answer"] == max(row["logprobs"], key=row["logprobs"].get)
        assert list(row["logprobs"]) == ["the river", "the road", "the sun"]
    with pytest.raises(UserError, match="--answer likelihood compares options"):
        run(model, written(tmp_path, ".jsonl"), tmp_path / "b.jsonl", EvalOptions(answer="likelihood"))
    answers = [{"id": "1", "answer": ["a", "b"]}, {"id": "2", "answer": ["a|b", "c"]}, {"id": "3", "answer": []}]
    for ending in (".csv", ".jsonl", ".parquet"):  # a file of one row
        write_answers([{"id": "1", "answer": "a"}], tmp_path / f"one{ending}")
        assert read(tmp_path / f"one{ending}") == [{"id": "1", "answer": "a"}]
    for ending, expected in {
        ".csv": ["a|b", '["a|b", "c"]', ""],
        ".jsonl": [["a", "b"], ["a|b", "c"], []],
        ".parquet": [["a", "b"], ["a|b", "c"], []],
    }.items():
        write_answers(answers, tmp_path / f"c{ending}")
        assert [row["answer"] for row in read(tmp_path / f"c{ending}")] == expected


def test_files_that_are_somebody_elses_are_left_alone(tmp_path: Path, model: str) -> None:
    file, out = written(tmp_path, ".jsonl"), tmp_path / "answers.jsonl"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"exists already, but .* does not, so the origin of its answers is unknown"):
        run(model, file, out)
    assert out.read_text() == "mine"
    for place, message in (
        (file, "is the file with the questions"),
        (tmp_path / "answers.txt", "an ending of .jsonl"),
    ):
        with pytest.raises(UserError, match=message):
            run(model, file, place)

"""Answers to a user's own questions, and evaluation in vLLM."""

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import eval.run.evaluate  # noqa: F401 - before a stand-in takes the place of d2e_sft.vllm
from d2e_sft.data.data_record import DataRecord, DataSource
from d2e_sft.data.sample import write_samples
from d2e_sft.decoding import DecodingConfig, OptionScore, Output, PromptPair, finished, generate, score, stop_token_ids
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from data_builders.own_data.questions import read_questions
from eval.run import passes
from eval.run.evaluate import evaluate_model
from eval.run.options import EvalOptions
from eval.run.predict import Answered, predict, trained_relation, write_answers
from tests.command import call, d2e, refusal_of
from tests.factories import bench_row, bench_rows, evaluate, evaluation, make_world, predictions, save_bench, scores_of
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


def test_an_output_without_a_recognised_answer_has_an_empty_one(tmp_path: Path, model: str) -> None:
    rows = [{**row, "options": ["a xylophone", "two zithers"], "format": "scq"} for row in ROWS]
    answered = run(model, written(tmp_path, ".jsonl", rows), out := tmp_path / "answers.jsonl")
    assert answered.unread == len(rows)
    assert all(row["output"] and row["answer"] is None for row in read(out))


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


def test_the_last_user_turn_of_a_chat_is_answered_as_by_an_evaluation(tmp_path: Path, model: str) -> None:
    def chat(number: int, *last: str) -> list[dict[str, str]]:
        fact = f"<context>Rain fell on day {number}.</context>\n" if number < 4 else ""
        texts = [f"{fact}What fell?", "Rain.", f"When, {number}?", *last]
        return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]

    chats = {"gold": [{"messages": chat(n, f"On day {n}.")} for n in range(5)],
             "open": [{"messages": chat(n)} for n in range(5)],
             "prompts": [{"prompt": chat(n)} for n in range(5)]}  # fmt: skip
    for name, rows in chats.items():
        written(tmp_path, ".jsonl", rows).rename(tmp_path / f"{name}.jsonl")
    (tmp_path / "mine.yaml").write_text("test: gold.jsonl\nformat: chat\nloss: all\n")
    (tmp_path / "trl.yaml").write_text("train: x.jsonl\nformat: chat\ncolumns: {messages: [prompt, completion]}\n")
    assert d2e("data", "build", "--datasets", tmp_path / "mine.yaml", "--out", tmp_path / "bench") == 0
    evaluate_model(model, tmp_path / "bench", run=tmp_path / "run", options=OPTIONS)
    expected = [row["output"] for row in read(tmp_path / "run" / "eval" / "bench" / "predictions.jsonl")]
    assert len(set(expected)) > 1
    for name, mapping in {"gold": None, "open": None, "mine": None, "prompts": tmp_path / "trl.yaml"}.items():
        file = tmp_path / f"{name}.{'yaml' if name == 'mine' else 'jsonl'}"
        run(model, file, tmp_path / f"{name}-answers.jsonl", mapping=mapping)
        found = read(tmp_path / f"{name}-answers.jsonl")
        assert [row["output"] for row in found] == expected
        assert [row["question"] for row in found] == [f"When, {n}?" for n in range(5)]


def test_chats_for_a_run_that_was_trained_on_questions_cause_a_warning(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tmp_path / "trained"
    shutil.copytree(model, trained)
    chats = written(tmp_path, ".jsonl", [{"messages": [{"role": "user", "content": "What fell?"}]}] * 2)
    source = DataSource(train="x", train_sha256=None, rows=None, prompt_set="default", prompt_set_sha256="")
    for wording, warnings in (("default, neutral", 1), ("default, the rows' own", 0), (None, 0)):
        record = DataRecord(source=source, samples=1, tokens_sha256="", processes=1, versions={}, wording=wording)
        (trained / "data.json").write_text(record.model_dump_json())
        capsys.readouterr()
        run(str(trained), chats, tmp_path / f"{warnings}-{wording}.jsonl")
        said = " ".join(capsys.readouterr().err.split())
        assert said.count("2 of 2 rows are chats") == warnings


def test_each_row_of_a_file_is_a_chat_or_a_question(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "What fell?"}, {"from": "gpt", "value": ""}]
    rows = [*ROWS[:1], {"id": "c", "conversations": said, "context": "It rained."}]
    samples, _ = read_questions(written(tmp_path, ".jsonl", rows), mapping=None, fmt=None)
    assert [(one.format, one.context, one.question) for one in samples] == [
        ("qa", ROWS[0]["context"].strip(), "What 4?"), ("chat", "It rained.", "What fell?")]  # fmt: skip
    for ending in (".csv", ".parquet"):
        cell = json.dumps(said) if ending == ".csv" else said
        file = written(tmp_path, ending, [{"messages": cell, "context": "It rained."}])
        assert [one.context for one in read_questions(file, mapping=None, fmt=None)[0]] == ["It rained."]


def test_a_finished_call_is_read_again_with_equal_options_only(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = written(tmp_path, ".jsonl"), tmp_path / "answers.jsonl"
    run(model, file, out)
    whole = out.read_bytes()
    out.unlink()
    with pytest.raises(UserError, match=r"--alpha: 0.5 → 0.9"):
        run(model, file, out, EvalOptions(alpha=0.9, max_new_tokens=6, batch_size=3))
    assert not out.exists()
    monkeypatch.setattr(passes, "make_engine", None)  # nothing is decoded again
    assert run(model, file, out).record["engine"] == "transformers"
    assert out.read_bytes() == whole


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


@dataclass
class Offline:
    """Stands in for `d2e_sft.vllm.offline`: the same interface, without vLLM."""

    loaded: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dies_after: int | None = None

    def load_llm(self, model: str, **options: Any) -> Any:
        self.loaded.append((model, options))
        return load_model(model)

    def stop_ids_of(self, llm: Any, end_of_turn: int) -> list[int]:
        return stop_token_ids(llm.model, end_of_turn)

    def generate(
        self,
        llm: Any,
        pairs: Sequence[PromptPair[Any]],
        decoding: DecodingConfig,
        *,
        stop_ids: Sequence[int],
    ) -> Iterator[Output]:
        outputs = finished(generate(llm.model.eval(), llm.tokenizer, pairs, decoding, stop_ids=stop_ids))
        outputs[0].resubmissions = 4
        for count, output in enumerate(reversed(outputs)):  # answers come in any order
            if count == self.dies_after:
                raise RuntimeError("the engine is gone")
            yield output

    def score(self, llm: Any, pairs: Sequence[PromptPair[Any]]) -> Iterator[tuple[int, list[OptionScore]]]:
        return score(llm.model.eval(), pairs, DecodingConfig(alpha=0))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Offline:
    stand_in = Offline()
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.0-test"  # type: ignore[attr-defined]
    for name, stub in (("vllm", vllm), ("d2e_sft.vllm", ModuleType("d2e_sft.vllm"))):
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.setitem(sys.modules, "d2e_sft.vllm.offline", stand_in)  # type: ignore[arg-type]
    return stand_in


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [*bench_rows(20), bench_row(20, context="")]
    return make_world(tmp_path_factory.mktemp("world"), bench=rows, seed=3)


def outputs(run: Path) -> list[str]:
    return [row["output"] for row in predictions(run)]


@pytest.mark.parametrize("how", [("--alpha", 0), ("--alpha", 2, "--plausibility", 0.99)])
def test_vllm_is_given_the_prompts_of_the_other_engine(
    world: Path, tmp_path: Path, offline: Offline, how: tuple[str | float, ...]
) -> None:
    assert evaluate(world, tmp_path / "vllm", "--engine", "vllm", *how) == 0
    assert evaluate(world, tmp_path / "here", *how) == 0
    assert outputs(tmp_path / "vllm") == outputs(tmp_path / "here")
    scores = scores_of(tmp_path / "vllm")
    assert scores["engine"] == "vllm"
    assert scores["environment"]["vllm"] == "0.0-test"
    assert scores["engine_counts"] == {"resubmissions": 4}


def test_a_text_that_ends_an_answer_cuts_the_outputs_of_vllm_too(
    world: Path, tmp_path: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [row["output"] for row in _completed(world, tmp_path / "whole", "--engine", "vllm")]
    middle = next(text[2] for text in said if len(text) > 4)
    monkeypatch.setattr("d2e_sft.data.prompts.PromptSet.stops", (middle,))
    cut = [row["output"] for row in _completed(world, tmp_path / "vllm", "--engine", "vllm")]
    assert cut == [text.partition(middle)[0] for text in said] != said
    assert cut == [row["output"] for row in _completed(world, tmp_path / "here")]


def _completed(world: Path, run: Path, *how: str) -> list[dict[str, Any]]:
    assert evaluate(world, run, "--form", "completion", "--alpha", 0.5, *how) == 0
    return predictions(run, "bench-completion")


def test_vllm_scores_options_as_the_other_engine(world: Path, tmp_path: Path, offline: Offline) -> None:
    rows = [bench_row(i) for i in range(1, 9, 2)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", "--answer", "likelihood")
    assert d2e(*common, "--engine", "vllm", "--out", tmp_path / "vllm") == 0
    assert d2e(*common, "--out", tmp_path / "here") == 0
    results = [tmp_path / name / "eval" / "bench-likelihood" / "predictions.jsonl" for name in ("vllm", "here")]
    assert results[0].read_text() == results[1].read_text()


def test_its_options_reach_it_and_the_recipes_dtype_does_not(world: Path, tmp_path: Path, offline: Offline) -> None:
    options = ("--tensor-parallel", 2, "--max-model-len", 900, "--gpu-memory-utilization", 0.5)
    assert evaluate(world, tmp_path, "--engine", "vllm", *options) == 0
    wanted = {"dtype": "auto", "tensor_parallel_size": 2, "max_model_len": 900, "gpu_memory_utilization": 0.5}
    assert offline.loaded == [(str(world / "model"), wanted)]


def test_the_length_that_it_was_given_is_the_limit(world: Path, tmp_path: Path, offline: Offline) -> None:
    error = refusal_of(*evaluation(world, tmp_path, "--engine", "vllm", "--max-model-len", 300))
    assert "exceed the model's context: prompts may have 294 tokens plus 6 new ones" in error
    assert not offline.loaded, "unsupported requests are refused before an engine starts"


def test_the_engine_makes_no_difference_to_what_is_kept(world: Path, tmp_path: Path, offline: Offline) -> None:
    offline.dies_after = 18
    with pytest.raises(RuntimeError, match="the engine is gone"):
        evaluate(world, tmp_path, "--engine", "vllm", "--alpha", 0.5)
    assert "resumed: 18 of 21" in call(*evaluation(world, tmp_path, "--alpha", 0.5)).err
    assert scores_of(tmp_path)["engine"] == "vllm, transformers"

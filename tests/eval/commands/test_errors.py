"""`d2e errors` by a judge or by rule, and results that were altered are used nowhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.files import with_checksums
from eval.score.predictions import write_predictions
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import make_run as make_trained
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run as score_piper
from tests.factories import choice, make_run, make_world, prediction, scores_of, write_recorded
from tests.judge_server import JudgeServer


def _run_folder(tmp_path: Path) -> Path:
    right = [prediction(0, True), choice(0, True)]
    return make_run(tmp_path / "run", [*right, prediction(1, False), prediction(2, False), choice(1, False)])


def _written(run: Path) -> dict[str, Any]:
    return json.loads((run / "eval/mini/error_patterns.json").read_text())


def test_a_judge_sorts_the_wrong_answers_alone(tmp_path: Path, server: JudgeServer) -> None:
    server.reply = lambda user: "Look.\nError: " + ("neglect" if "kettle" in user and "spoon" not in user else "other")
    run = _run_folder(tmp_path)
    printed = output_of("errors", run, "--judge", "openai", "--judge-model", "m", "--judge-url", server.url)
    assert len(server.requests) == 3
    lines = [line.replace(" ", "") for line in printed.splitlines()]
    assert "3of5predictionsarewrong" in lines
    assert lines[lines.index("temporal") + 1] == "run2(66.7%of3)100.0%(2)0.0%(0)0.0%(0)0.0%(0)"
    assert lines[lines.index("all") + 1] == "run3(60.0%of5)66.7%(2)0.0%(0)33.3%(1)0.0%(0)"
    written = _written(run)
    found = {"neglect_context": 2, "inaccurate_position": 0, "same_without_context": 0, "other": 1, "undecided": 0}
    assert written["counts"] == found
    first = {"dataset": "stories", "id": "s1", "pattern": "neglect_context", "reason": "Look."}
    assert written["errors"][0] == first


def test_rules_compare_with_the_answers_without_the_context(tmp_path: Path) -> None:
    run = _run_folder(tmp_path)
    blind = [prediction(1, False), prediction(2, True), choice(1, True)]
    write_predictions(blind, tmp_path / "blind.jsonl")
    printed = output_of("errors", run, "--without-context", tmp_path / "blind.jsonl")
    assert "Estimated by rule" in printed
    found = {"neglect_context": 0, "inaccurate_position": 0, "same_without_context": 1, "other": 0, "undecided": 2}
    assert _written(run)["counts"] == found
    assert "neglects" not in printed, "the rule does not measure the paper's neglect"
    # What d2e eval left beside the predictions is found.
    blind = [prediction(1, False), prediction(2, False), choice(1, True)]
    write_recorded(blind, run / "eval" / "mini" / "without_context.jsonl")
    output_of("errors", run)
    written = _written(run)
    assert written["estimated_by_rule"] is True
    assert written["counts"]["same_without_context"] == 2
    assert written["relations"]["causal"]["undecided"] == 1
    write_recorded([prediction(1, False)], run / "eval" / "mini" / "without_context.jsonl")
    error = refusal_of("errors", run)
    assert "holds no answer for 2 of 3 wrong predictions, such as 's2' of 'stories'" in error


@pytest.mark.parametrize(
    ("scores", "fingerprint", "options"),
    [
        (
            {
                "setting": "cot",
                "subset": {"per_group": 1, "seed": 3, "of": 9},
                "max_new_tokens": 512,
                "engine": "vllm",
            },
            {},
            "--setting cot --max-samples 1 --seed 3 --max-new-tokens 512 --engine vllm",
        ),
        (
            {"prompt_set": "mine", "prompt_set_given": "sets/mine.yaml"},
            {"dtype": "bfloat16", "temperature": 0},
            "--prompt-set sets/mine.yaml --dtype bfloat16",
        ),
    ],
)
def test_without_them_the_remedy_is_the_command_with_all_options_of_the_first_pass(
    tmp_path: Path, scores: dict[str, Any], fingerprint: dict[str, Any], options: str
) -> None:
    run = make_run(tmp_path / "run", [prediction(1, False)], model="some/model", fingerprint=fingerprint, **scores)
    error = refusal_of("errors", run)
    command = f"d2e eval some/model --bench data/mini {options} --out {run} --without-context"
    assert f"remedy: {command}" in error


def test_an_estimate_asks_and_writes_nothing(tmp_path: Path, server: JudgeServer) -> None:
    run = _run_folder(tmp_path)
    given = ("--judge", "openai", "--judge-model", "m", "--judge-url", server.url)
    printed = output_of("errors", run, *given, "--estimate")
    assert "error patterns: 3 requests" in printed
    assert server.requests == []
    assert not (run / "eval/mini/error_patterns.json").exists()


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

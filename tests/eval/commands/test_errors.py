"""`d2e errors` by a judge or by rule, and results that were altered are used nowhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval.score.predictions import write_predictions
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import make_run as make_trained
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.paper_runs import run as score_piper
from tests.factories import choice, make_run, prediction, scores_of, write_recorded
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
    assert {key: written["errors"][0][key] for key in first} == first


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


def edit(old: str, new: str) -> Callable[[str], str]:
    """Replace the first such text, which is there."""

    def edited(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edited


Change = Callable[[str], str | None]
SCORES, PREDICTIONS, RECORD = "scores.json", "predictions.jsonl", "predictions.decoding.json"
# A file, its text made of the old one (None: it is removed), and what is said.
ALTERED: dict[str, tuple[str, Change, str]] = {
    "an edited mean": (SCORES, edit('"mean": 0.', '"mean": 0.9'), f"{SCORES}: was changed after it was written"),
    "NaN": (SCORES, edit('"mean": 0.', '"mean": NaN, "x": 0.'), f"{SCORES}: was changed after it was written"),
    "no checksums": (SCORES, edit('"checksums"', '"sums"'), f"{SCORES}: has no checksums"),
    "null": (SCORES, lambda text: "null", SCORES),
    "a part": (SCORES, lambda text: text[:200], SCORES),
    "no predictions": (PREDICTIONS, lambda text: None, f"{PREDICTIONS}: is missing; scores.json has its SHA-256"),
    "edited predictions": (PREDICTIONS, edit('"exact_match":0.0', '"exact_match":1.0'), f"{PREDICTIONS}: was changed"),
    "no record": (RECORD, lambda text: None, f"{RECORD}: cannot be read"),
    "an empty record": (RECORD, lambda text: "", f"{RECORD}: not the record of a decoding"),
    "a record of nothing": (RECORD, lambda text: "{}", f"{RECORD}: has no predictions_sha256"),
    "another checksum": (RECORD, edit('_sha256": "', '_sha256": "0'), "was changed"),
    "no checksum yet": (RECORD, edit('_sha256": ', '_sha256": null, "x": '), "was interrupted"),
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a model, and scores of rows and of a related system."""
    run = make_trained(tmp_path)
    score_piper(run, engine="transformers")
    return save_result(run, accuracy([1, 0, 1]))


@pytest.mark.parametrize(("name", "change", "said"), ALTERED.values(), ids=ALTERED)
def test_altered_results_are_used_nowhere(run: Path, name: str, change: Change, said: str) -> None:
    file = run / "eval" / "piper" / name
    text = change(file.read_text(encoding="utf-8"))
    file.unlink() if text is None else file.write_text(text, encoding="utf-8")
    bench = ["--bench", "piper"]
    calls = [
        ["compare", run, *bench],
        ["report", run, "--out", run.parent / "r.html", *bench],
        ["errors", run, *bench],
    ]
    if name != RECORD:  # these do not read what was decoded how
        calls += [["table", run, *bench], ["export", run, run.parent / "out"], ["push", run, "a/b", "--dry-run"]]
    for words in calls:
        assert said in refusal_of(*words)


def test_an_export_keeps_verifiable_scores(run: Path, tmp_path: Path) -> None:
    output_of("export", run, tmp_path / "out")
    output_of("push", tmp_path / "out", "a/b", "--dry-run")
    assert scores_of(tmp_path / "out", "piper")["bench"] == scores_of(run, "piper")["bench"]
    sent = tmp_path / "out" / "eval" / "piper" / SCORES
    sent.write_text(edit('"mean": 0.', '"mean": 0.9')(sent.read_text()))
    assert "scores.json: was changed" in refusal_of("push", tmp_path / "out", "a/b", "--dry-run")

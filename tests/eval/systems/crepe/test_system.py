"""`d2e eval --bench crepe` and `d2e score crepe` as a user calls them, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.system import CrepeOptions
from eval.systems.system import parse_options
from tests.command import d2e
from tests.eval.systems.crepe.procedures import DARK, GOLD, event, save, with_predictions
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes prompts of some thousand bytes."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16_384}))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    save(tmp_path / "data" / "data_dev_v2.json", GOLD)
    return tmp_path / "data"


def evaluate(model: Path, data: Path, *arguments: str | int) -> int:
    common = ("--bench", "crepe", "--data", data, "--out", data.parent / "run", "--max-new-tokens", 6)
    return d2e("eval", model, *common, *arguments)


def results(data: Path, variant: str = "") -> tuple[dict[str, Any], Path]:
    folder = data.parent / "run" / "eval" / f"crepe{variant}"
    return json.loads((folder / "scores.json").read_text(encoding="utf-8")), folder


@pytest.mark.parametrize("prompt", ["text", "text_at_once", "cot", "code_nested", "code_two_step"])
def test_a_run_leaves_predictions_that_score_the_same(
    model: Path, data: Path, prompt: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", f"prompt={prompt}", "--set", "shots=1", "--alpha", "0.5")
    assert evaluate(model, data, *options) == 0
    assert "majority: macro-F1" in capsys.readouterr().out
    scores, folder = results(data, f"-prompt={prompt}-shots=1")
    assert scores["counts"]["pairs"] == 8
    gold = data / "data_dev_v2.json"
    assert (
        d2e("score", "crepe", "--predictions", folder / "crepe_predictions.json", "--gold", gold, "--json", "-") == 0
    )
    again = json.loads(capsys.readouterr().out)
    assert again["macro_f1"] == scores["macro_f1"]
    shared = again.keys() & scores.keys()
    assert {key: again[key] for key in shared} == {key: scores[key] for key in shared}


def test_folders_will_do_for_both_files_and_another_gold_is_told(
    model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(model, data, "--set", "prompt=text", "--set", "shots=0") == 0
    scores, _ = results(data, "-prompt=text-shots=0")
    call = ("score", "crepe", "--predictions", data.parent / "run", "--gold", data, "--json", "-")
    capsys.readouterr()
    assert d2e(*call) == 0
    same = capsys.readouterr()
    assert json.loads(same.out)["macro_f1"] == scores["macro_f1"]
    assert "warning" not in same.err
    save(data / "data_dev_v2.json", with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]}))
    assert d2e(*call) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["other_gold"] == 1
    assert "carries other gold than" in told.err
    assert "1 of 8 (event, step) pairs" in told.err
    assert d2e(*call, "--set", "split=test") == 1
    assert "holds no data_test_v2.json; there is data_dev_v2.json" in capsys.readouterr().err


def test_another_subset_is_refused_in_words(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", "prompt=text", "--set", "shots=0")
    assert evaluate(model, data, *options, "--max-samples", 1) == 0
    capsys.readouterr()
    assert evaluate(model, data, *options) == 1
    error = capsys.readouterr().err
    assert "prompts (--max-samples 1 --seed 0) → " in error
    assert "prompts (all)" in error
    assert "sha256" not in error
    assert evaluate(model, data, *options, "--overwrite") == 0
    assert evaluate(model, data, *options, "--max-samples", 2) == 0, "of two procedures two are the same prompts"


def test_yes_and_no_are_scored_by_likelihood(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ("--bench", "crepe", "--data", data, "--out", data.parent / "run", "--answer", "likelihood")
    assert d2e("eval", model, *call, "--set", "prompt=yes_no", "--alpha", "0.5") == 0
    scores, folder = results(data, "-prompt=yes_no-likelihood")
    assert scores["unparsed"]["pairs"] == 0
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert all([option["option"] for option in row["likelihoods"]] == ["yes", "no"] for row in rows)
    capsys.readouterr()
    assert d2e("eval", model, *call, "--set", "prompt=cot") == 1
    assert "have no options to score" in capsys.readouterr().err


def test_a_subset_is_scored_by_its_own_procedures(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(model, data, "--set", "prompt=text", "--set", "shots=0", "--max-samples", 1) == 0
    scores, folder = results(data, "-prompt=text-shots=0")
    assert scores["counts"]["procedures"] == 1
    gold = data / "data_dev_v2.json"
    call = ("score", "crepe", "--predictions", folder / "crepe_predictions.json", "--gold", gold)
    capsys.readouterr()
    assert d2e(*call) == 1
    assert "--set missing=leave_out" in capsys.readouterr().err
    assert d2e(*call, "--set", "missing=leave_out", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["macro_f1"] == scores["macro_f1"]


def test_the_imagined_view_can_be_decoded_alone(model: Path, data: Path) -> None:
    assert evaluate(model, data, "--set", "prompt=text", "--set", "shots=0", "--without-context") == 0
    scores, folder = results(data, "-prompt=text-shots=0-without-context")
    assert scores["without_context"]
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    by_step: dict[str, set[str]] = {}
    for row in answers:
        by_step.setdefault(row["id"].rpartition("/")[0], set()).add(row["output"])
    assert all(len(outputs) == 1 for outputs in by_step.values()), "without the steps all prompts of an event are one"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "prompt=poem"), "prompt: got 'poem'"),
        (("--set", "shots=7"), "shots: got '7'"),
        (("--set", "split=test"), "holds no data_test_v2.json"),
        (("--set", "entities=predicted", "--set", "entities_file=none.json"), "none.json: cannot be read"),
    ],
)
def test_a_wrong_call_is_one_message(
    model: Path, data: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(model, data, *arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("given", [("prompt=chat", "entities=gold"), ("prompt=code_nested", "entities=soft")])
def test_pairs_that_the_paper_has_not_are_refused_with_those_it_has(given: tuple[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_options(CrepeOptions, given, "crepe")
    assert "the paper has no such prompt" in caught.value.message
    assert "prompt=code with entities=none|soft|hard|gold|predicted" in caught.value.message


@pytest.mark.parametrize("given", [("entities=predicted",), ("entities_file=x.json",)])
def test_predicted_states_need_their_file_and_no_other_kind_takes_one(given: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="are given together or not at all"):
        parse_options(CrepeOptions, given, "crepe")

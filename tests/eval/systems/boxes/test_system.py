"""Boxes on the command line, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import d2e
from tests.eval.systems.boxes.rows import ROWS, save
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3, positions=16_384)  # its tokens are bytes
    save(folder / "boxes" / "test.jsonl", ROWS)
    return folder


def scores_in(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return content


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ((), "boxes"),
        (
            ("--set", "prompt=one_box", "--set", "demonstrations=alternate"),
            "boxes-prompt=one_box-demonstrations=alternate",
        ),
        (("--set", "prompt=trained", "--alpha", "0.5"), "boxes-prompt=trained"),
        (
            ("--set", "form=cloze", "--set", "demonstrations=none", "--alpha", "0.5"),
            "boxes-form=cloze-demonstrations=none",
        ),
        (("--set", "states_per_numops=1"), "boxes-states_per_numops=1"),
    ],
)
def test_a_run_keeps_scores_tables_plot_and_predictions_that_score_the_same(
    world: Path, tmp_path: Path, options: tuple[str, ...], folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bench", "boxes", "--data", world / "boxes", "--out", tmp_path, "--max-new-tokens", 8)
    assert d2e("eval", world / "model", *where, *options) == 0
    assert "whole states" in capsys.readouterr().out
    results = tmp_path / "eval" / folder
    scores = scores_in(results)
    assert scores["system"] == "boxes"
    assert scores["questions"] == 6
    assert "password" not in scores["options"]
    assert (results / "accuracy.svg").read_text().startswith("<?xml")
    gold = world / "boxes" / "test.jsonl"
    for name in ("answers_by_box.jsonl", "predictions.tsv"):
        assert d2e("score", "boxes", "--predictions", results / name, "--gold", gold, "--json", "-") == 0
        printed = json.loads(capsys.readouterr().out)
        assert {key: scores[key] for key in printed} == printed


def test_a_base_model_without_a_chat_template_completes_statements(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(tmp_path / "base", seed=3, positions=16_384)
    (model / "chat_template.jinja").unlink()
    where = ("--bench", "boxes", "--data", world / "boxes", "--out", tmp_path, "--max-new-tokens", 4)
    assert d2e("eval", model, *where) == 1
    assert "has no chat template" in capsys.readouterr().err
    assert d2e("eval", model, *where, "--set", "form=cloze", "--set", "prompt=one_box") == 0
    scores = scores_in(tmp_path / "eval" / "boxes-prompt=one_box-form=cloze")
    assert (scores["questions"], scores["options"]["form"]) == (6, "cloze")


def test_the_trained_prompt_has_no_other_form(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--bench", "boxes", "--data", world / "boxes", "--out", tmp_path)
    assert d2e("eval", world / "model", *where, "--set", "prompt=trained", "--set", "form=cloze") == 1
    assert "leave form and demonstrations out" in capsys.readouterr().err


def test_max_samples_counts_states(world: Path, tmp_path: Path) -> None:
    where = ("--bench", "boxes", "--data", world / "boxes", "--out", tmp_path, "--max-new-tokens", 2)
    assert d2e("eval", world / "model", *where, "--max-samples", 1) == 0
    scores = scores_in(tmp_path / "eval" / "boxes")
    assert (scores["states"], scores["questions"]) == (1, 3)


def test_predictions_may_name_their_lines_or_follow_the_gold_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = save(tmp_path / "test.jsonl", ROWS)
    texts = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "the hat"]

    def scored(rows: list[dict[str, Any]]) -> dict[str, Any]:
        assert (
            d2e("score", "boxes", "--predictions", save(tmp_path / "p.jsonl", rows), "--gold", gold, "--json", "-")
            == 0
        )
        content: dict[str, Any] = json.loads(capsys.readouterr().out)
        return content

    assert scored([{"prediction": text} for text in texts])["state_accuracy"]["mean"] == 1
    some = scored([{"line": 5, "prediction": "the pen"}, {"line": 2, "prediction": "nothing"}])
    assert (some["questions"], some["accuracy"]["mean"]) == (2, 0.5)
    assert (some["states"], some["state_accuracy"]) == (0, None), "a part of a state is no whole one"
    assert scored([{"line": n, "prediction": texts[n - 1]} for n in (1, 2, 3, 4)])["states"] == 1

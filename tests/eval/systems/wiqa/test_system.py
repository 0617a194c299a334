"""WIQA on the command line, with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import d2e
from tests.eval.systems.wiqa.files import QUESTIONS, save_lines
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that takes prompts of some thousand bytes."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8_192}))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_lines(tmp_path / "data" / "test.jsonl", QUESTIONS).parent


def evaluate(model: Path, data: Path, *arguments: str | int) -> int:
    return d2e("eval", model, "--bench", "wiqa", "--data", data, "--out", data.parent / "run", *arguments)


def results(data: Path, variant: str = "") -> tuple[dict[str, Any], Path]:
    folder = data.parent / "run" / "eval" / f"wiqa{variant}"
    return json.loads((folder / "scores.json").read_text(encoding="utf-8")), folder


def test_a_run_leaves_predictions_that_score_the_same(
    model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(model, data, "--alpha", "0.5") == 0
    assert "polarity" in capsys.readouterr().out
    scores, folder = results(data)
    call = ("score", "wiqa", "--predictions", folder / "wiqa_predictions.jsonl", "--gold", data / "test.jsonl")
    assert d2e(*call, "--json", "-") == 0
    again = json.loads(capsys.readouterr().out)
    shared = again.keys() & scores.keys()
    assert {"accuracy", "by_type", "by_hops", "consistency", "baselines"} <= shared
    assert {key: again[key] for key in shared} == {key: scores[key] for key in shared}


def test_the_no_paragraph_ablation_is_the_imagined_view(model: Path, data: Path) -> None:
    assert evaluate(model, data, "--set", "shots=1", "--set", "paragraph=no") == 0
    assert evaluate(model, data, "--set", "shots=1", "--without-context") == 0
    ablation, imagined = results(data, "-paragraph=no-shots=1")[1], results(data, "-shots=1-without-context")[1]
    assert (ablation / "answers.jsonl").read_text() == (imagined / "answers.jsonl").read_text()


def test_a_subset_and_a_wrong_file(model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(model, data, "--max-samples", 2, "--set", "shots=0") == 0
    assert results(data, "-shots=0")[0]["counts"]["questions"] == 2
    assert evaluate(model, data, "--set", "file=dev.jsonl") == 1
    assert "holds no dev.jsonl" in capsys.readouterr().err

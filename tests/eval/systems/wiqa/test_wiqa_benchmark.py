"""`d2e eval --bench wiqa` with a tiny random model, its prompts and how replies are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.systems.wiqa.prompts import conversation, most_shots, read_answer
from eval.systems.wiqa.questions import read_questions
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
    assert "dev.jsonl: no such file; expected WIQA's questions" in capsys.readouterr().err


def test_prompts_list_the_steps_and_the_imagined_view_has_none(tmp_path: Path) -> None:
    question = read_questions(save_lines(tmp_path / "q.jsonl", QUESTIONS))[1]
    chat = conversation("wiqa", question, shots=most_shots(), paragraph=True)
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert [message["content"] for message in chat.messages[2::2]] == ["more", "less", "no effect"]
    told = chat.messages[-1]["content"]
    assert "1. Rain falls on the hill\n2. Water runs down the hill\n3. The pond fills\n" in told
    assert question.stem in told
    assert chat.imagined[:-1] == chat.messages[:-1]
    assert question.stem in chat.imagined[-1]["content"]
    assert "The pond fills" not in str(chat.imagined)
    ablation = conversation("wiqa", question, shots=1, paragraph=False)
    assert ablation.messages == ablation.imagined
    assert ablation.imagined == conversation("wiqa", question, shots=1, paragraph=True).imagined


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("more", "more"),
        ("The effect is less, not more.", "less"),
        ("No effect.", "no_effect"),
        ("no_effect", "no_effect"),
        ("It does not affect it.", "no_effect"),
        ("Rain is more likely here. Answer: less", "less"),
        ("(B)", "less"),
        ("C. because", "no_effect"),
        ("Because of rain", None),
        ("moreover", None),
    ],
)
def test_answers(reply: str, answer: str | None) -> None:
    assert read_answer(reply) == answer

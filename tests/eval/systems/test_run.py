"""A run of a benchmark: where its results are kept, and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import read_measures, shares
from eval.run.options import EvalOptions
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.run import evaluate_system
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult


class Options(SystemOptions):
    level: int = 1


class Riddles(System[list[str], list[str]]):
    name = "riddles"
    title = "Riddles"
    official_files = "riddles.txt"
    obtain = "make riddles"
    options = Options
    score_options = SystemOptions

    def read_gold(self, path: Path, options: Any) -> list[str]:
        return path.read_text().splitlines()

    def ask(self, gold: list[str], call: SystemCall, asker: Asker) -> list[str]:
        questions = call.drawn(gold)
        chats: list[Messages] = [[{"role": "user", "content": text}] for text in questions]
        asker.ask("riddles", [Conversation("riddles", chat[0]["content"], chat, chat) for chat in chats])
        return questions

    def evaluate(self, gold: list[str], answers: list[str], options: Any, seed: int) -> SystemResult:
        return SystemResult(
            {"asked": len(answers)},
            [Table.of(("asked",), [(str(len(answers)),)], "Riddles")],
            measures=shares("solved", "riddles", "gold", dict.fromkeys(answers, 1.0)),
        )

    def files(self, gold: list[str], answers: list[str]) -> dict[str, str]:
        return {"riddles.txt": "said"}


RIDDLES = Riddles()


def evaluate(model: Path, run: Path, data: Path | None, *given: str, **options: Any) -> tuple[dict[str, Any], Path]:
    chosen = EvalOptions(**{"max_new_tokens": 2, **options})
    scores, _, folder = evaluate_system(str(model), RIDDLES, run=run, data=data, given=given, options=chosen)
    return scores, folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "riddles.txt"
    path.write_text("What is it?\nWho is it?\nWhere is it?\n")
    return path


def test_results_are_kept_with_what_they_came_from(model: Path, tmp_path: Path, data: Path) -> None:
    scores, folder = evaluate(model, tmp_path / "run", data, "level=2", max_samples=2, seed=4)
    assert folder == tmp_path / "run" / "eval" / "riddles-level=2"
    assert json.loads((folder / "scores.json").read_text()) == scores
    assert (scores["system"], scores["asked"], scores["max_samples"], scores["seed"]) == ("riddles", 2, 2, 4)
    assert (scores["options"], scores["without_context"]) == ({"level": 2}, False)
    assert scores["passes"]["riddles"]["engine"] == "transformers"
    assert (folder / "riddles.txt").read_text() == "said"
    assert (folder / "tables.md").read_text().startswith("Riddles\n\n| asked |")
    assert len((folder / "riddles.jsonl").read_text().splitlines()) == 2


def test_results_without_measures_get_them_from_the_kept_answers(
    model: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = evaluate(model, tmp_path / "run", data)
    [measure] = read_measures(folder)
    assert (measure.name, len(measure.counts)) == ("solved", 3)
    (folder / "measures.json").unlink()
    capsys.readouterr()
    evaluate(model, tmp_path / "run", data)
    assert read_measures(folder) == [measure]
    assert "decoded before, and only scored again" in capsys.readouterr().err


def test_answers_without_context_have_a_folder_of_their_own(model: Path, tmp_path: Path, data: Path) -> None:
    assert evaluate(model, tmp_path, data)[1].name == "riddles"
    assert evaluate(model, tmp_path, data, without_context=True)[1].name == "riddles-without-context"


def test_missing_files_are_named_with_how_to_get_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"data/raw/riddles does not exist; expected its official files") as caught:
        evaluate(model, tmp_path, None)
    assert "make riddles" in str(caught.value.remedy)

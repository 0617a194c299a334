"""A run of a benchmark: where its results are kept, and what is said about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.measures.measure import read_measures
from eval.run.options import EvalOptions
from eval.systems.run import evaluate_system
from tests.eval.systems.files import save
from tests.eval.systems.riddles import GOLD, RIDDLES
from tests.factories import scores_of


def evaluate(model: Path, run: Path, data: Path | None, *given: str, **options: Any) -> tuple[dict[str, Any], Path]:
    chosen = EvalOptions(**{"max_new_tokens": 2, **options})
    scores, _, folder = evaluate_system(str(model), RIDDLES, run=run, data=data, given=given, options=chosen)
    return scores, folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save(tmp_path / "test.jsonl", GOLD)


def test_results_are_kept_with_what_they_came_from(model: Path, tmp_path: Path, data: Path) -> None:
    scores, folder = evaluate(model, tmp_path / "run", data, "level=2", max_samples=2, seed=4)
    assert folder == tmp_path / "run" / "eval" / "riddles-level=2"
    assert scores_of(tmp_path / "run", folder.name) == scores
    assert (scores["system"], scores["counts"]["questions"], scores["max_samples"]) == ("riddles", 2, 2)
    assert (scores["options"], scores["without_context"], scores["seed"]) == (
        {"file": "test.jsonl", "level": 2},
        False,
        4,
    )
    assert scores["passes"]["answers"]["engine"] == "transformers"
    assert (folder / "tables.md").read_text().startswith("Riddles, test.jsonl\n\n| questions |")
    for name in ("answers.jsonl", "riddles_predictions.jsonl"):
        assert len((folder / name).read_text().splitlines()) == 2


def test_a_benchmark_with_options_can_be_answered_by_likelihood(model: Path, tmp_path: Path, data: Path) -> None:
    scores, folder = evaluate(model, tmp_path, data, answer="likelihood", max_new_tokens=None)
    assert folder.name == "riddles-likelihood"
    assert scores["unparsed"]["questions"] == 0


def test_results_without_measures_get_them_from_the_kept_answers(
    model: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = evaluate(model, tmp_path / "run", data)
    [measure] = read_measures(folder)
    assert (measure.name, len(measure.counts)) == ("accuracy", 3)
    (folder / "measures.json").unlink()
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

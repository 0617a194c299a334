"""The base of benchmarks with one label per question: scores by hand, and files of gold and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.labelled import LabelScoreOptions
from eval.systems.system import SystemCall
from tests.eval.systems.files import save
from tests.eval.systems.riddles import GOLD, RIDDLES, Riddles
from tests.factories import ScriptedAsker


def test_answers_are_read_counted_and_kept(tmp_path: Path) -> None:
    save(tmp_path / "test.jsonl", GOLD)
    asker: Any = ScriptedAsker(lambda name, chat: {"1": "An egg.", "2": "egg", "3": "?"}[chat.id])
    result = RIDDLES.run(SystemCall(tmp_path, RIDDLES.options(), None, 0), asker)
    assert (result.scores["accuracy"], result.scores["unparsed"]) == (1 / 3, {"share": 1 / 3, "questions": 1})
    counts = {"questions": 3, "gold": {"egg": 2, "fire": 1}, "predicted": {"egg": 2, "fire": 0}}
    assert result.scores["counts"] == counts
    assert [table.caption for table in result.tables] == ["Riddles, test.jsonl", "By label"]
    kept = save(tmp_path / "p.jsonl", result.files["riddles_predictions.jsonl"])
    again = RIDDLES.score(kept, tmp_path, LabelScoreOptions())
    assert again.scores == {**result.scores, "missing": 0}
    assert again.measures == result.measures


def test_gold_and_predictions_may_be_csv_and_partial(tmp_path: Path) -> None:
    gold, some = save(tmp_path / "gold.csv", GOLD), save(tmp_path / "p.csv", "id,answer\n2,fire\n3,null\n")
    result = RIDDLES.score(some, gold, LabelScoreOptions(missing="leave_out"))
    assert (result.scores["accuracy"], result.scores["missing"]) == (0.5, 1)
    assert "1 questions have no answer and are left out" in result.tables[0].markdown()


def test_a_subclass_may_compare_answers_in_its_own_way(tmp_path: Path) -> None:
    class Generous(Riddles):
        def is_right(self, answer: Any, question: Any) -> bool:
            return answer is not None

    gold = save(tmp_path / "gold.jsonl", GOLD)
    result = Generous().score(
        save(tmp_path / "p.csv", "id,answer\n1,fire\n2,egg\n3,null\n"), gold, LabelScoreOptions()
    )
    assert result.scores["accuracy"] == result.measures[0].interval.mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("gold", "predictions", "message"),
    [
        (GOLD, [{"id": "1", "answer": "ice"}], "p.jsonl, line 1: answer: got 'ice'"),
        (GOLD, [{"id": "1", "answer": "egg"}], "question '2' is missing (2 of 3)"),
        (GOLD, [{"id": "7", "answer": "egg"}], "question '7' is not in the gold file"),
        (GOLD, [{"id": "1", "answer": "egg"}] * 2, "p.jsonl, line 2: id '1' is given twice"),
        ([GOLD[0]] * 2, [], "g.jsonl, line 2: id '1' is given twice"),
        ([{**GOLD[0], "answer": "ice"}], [], "g.jsonl, line 1: answer: got 'ice'"),
        ([], [], "g.jsonl: holds no question"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_one_message(tmp_path: Path, gold: Any, predictions: Any, message: str) -> None:
    files = save(tmp_path / "p.jsonl", predictions), save(tmp_path / "g.jsonl", gold)
    with pytest.raises(UserError) as caught:
        RIDDLES.score(*files, LabelScoreOptions())
    assert message in caught.value.message

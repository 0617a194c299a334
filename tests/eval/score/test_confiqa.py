"""ConFiQA's measures, worked by hand, and next to published values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.compare.compare import compare_runs
from eval.compare.run_tables import score_tables
from eval.compare.runs import load_runs
from eval.compare.tables import confiqa_table
from eval.compare.verdicts import text_of
from eval.score.confiqa import confiqa_measures
from eval.score.predictions import Prediction
from eval.score.scores import score_predictions
from tests.factories import make_run, story


def asked(number: int, said: str, part: str = "qa", subset: str = "conflict", **changes: Any) -> Prediction:
    """The context says Bo Ray (also B. Ray), the world Ann Dow (also Ann M. Dow)."""
    fields = {"gold": ["Bo Ray", "B. Ray"], "dataset": f"confiqa_{part}"} | changes
    return story(number, subset, said, habit=["Ann Dow", "Ann M. Dow", "The"], **fields)


@pytest.mark.parametrize(
    ("said", "p_c", "p_o", "in_acc", "em"),
    [
        ("Bo Ray", 1, 0, 1, 1),
        ("the B Ray.", 1, 0, 1, 1),  # an alias, without its article and punctuation
        ("It was Bo Ray", 1, 0, 1, 0),
        ("Bo Raymond", 1, 0, 1, 0),  # characters, not words
        ("Bo Ray, not Ann Dow", 0, 1, 1, 0),  # contains both: the known answer counts
        ("Ann M. Dow", 0, 1, 0, 0),
        ("Not Bo Ray", 0, 0, 1, 0),  # a negation
        ("Nothing but Bo Ray", 0, 0, 1, 0),
        ("Bo Ray knows", 1, 0, 1, 0),  # negation words are whole: `knows` has `no`
        ("no one", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_an_answer_has_these_measures(said: str, p_c: int, p_o: int, in_acc: int, em: int) -> None:
    found = confiqa_measures(asked(1, said))
    assert found == {"confiqa P_c": p_c, "confiqa P_o": p_o, "confiqa In-Acc": in_acc, "confiqa EM": em}


def test_an_answer_that_is_a_negation_word_is_an_exact_match_only_in_another_case() -> None:
    """The authors' program looks for negations in the answer as it is written, and in the normalised output."""
    found = [confiqa_measures(asked(1, said, gold=["Dr. No"])) for said in ("Dr. No", "dr. no")]
    assert [(one["confiqa P_c"], one["confiqa EM"]) for one in found] == [(0, 1), (0, 0)]


def test_thoughts_do_not_count_and_other_rows_have_no_such_measures() -> None:
    thoughts = "<think>Is it Ann Dow? No.</think>The answer is: Bo Ray"
    assert confiqa_measures(asked(1, "Bo Ray", output=thoughts))["confiqa P_c"] == 1
    assert confiqa_measures(asked(1, "Bo Ray", subset="aligned")) == {}
    assert confiqa_measures(asked(1, "Bo Ray", dataset="habit")) == {}


ANSWERS = {"qa": ["Bo Ray", "Bo Ray", "Bo Ray", "Ann Dow"], "mr": ["Ann Dow", "Bo Ray"], "mc": ["Bo Ray", "no"]}
RIGHT = [asked(n, said, part) for part, own in ANSWERS.items() for n, said in enumerate(own)]


def test_scores_have_the_measures_of_each_part() -> None:
    scores = score_predictions([*RIGHT, asked(9, "Ann Dow", subset="aligned", gold=["Ann Dow"])])
    by_part = {group.dataset: group.confiqa or {} for group in scores.groups}
    assert {part: own["n"] for part, own in by_part.items()} == {"confiqa_qa": 4, "confiqa_mr": 2, "confiqa_mc": 2}
    # P_c 3/4, P_o 1/4, M_R (1/4) / (3/4 + 1/4)
    means = [getattr(by_part["confiqa_qa"][name], "mean", None) for name in ("P_c", "P_o", "M_R", "In-Acc", "EM")]
    assert means == [0.75, 0.25, 0.25, 0.75, 0.75]
    tables = {tuple(table.header()[0]): table.rows() for table in score_tables(scores)}
    assert tables["samples", "n", "P_c", "P_o", "M_R", "In-Acc", "EM"][1] == [
        "confiqa_mr, temporal, qa", "2", *["50.0"] * 5,
    ]  # fmt: skip


def test_the_average_of_three_parts_stands_next_to_published_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [asked(n, "Ann Dow", part) for part, own in ANSWERS.items() for n, _ in enumerate(own)]
    runs = [make_run(tmp_path / "a", RIGHT), make_run(tmp_path / "b", wrong)]
    found = confiqa_table(compare_runs(load_runs(runs)))
    lines = [(block, *row) for block, rows in found.blocks() for row in rows]
    block, label, p_c, p_o, m_r, *_ = next(line for line in lines if line[0].startswith("average"))
    assert (block, label, m_r) == ("average (8)", "a", "25.0"), "the mean of 25.0, 50.0 and 0.0"
    assert (p_c.split()[0], p_o.split()[0]) == ("58.3", "25.0"), "the means of 75, 50, 50 and of 25, 50, 0"
    assert ("published by OCC-RAG", "OCC-RAG-0.6B", "–", "–", "5.2", "79.9", "–") in lines
    monkeypatch.delenv("COLUMNS")
    printed = text_of(compare_runs(load_runs(runs)))
    assert "published by OCC-RAG" in printed
    assert max(map(len, printed.splitlines())) <= 100
    alone = compare_runs(load_runs([make_run(tmp_path / "qa", [row for row in RIGHT if row.dataset == "confiqa_qa"])]))
    assert "published" not in confiqa_table(alone).terminal()

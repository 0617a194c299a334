"""`d2e compare`: tables that add up, and a refusal of runs that cannot be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.compare.tables import comparison_tables
from eval.score.predictions import Prediction
from tests.command import d2e
from tests.factories import choice, make_run, prediction

RELATIONS = ("temporal", "causal", "counterfactual", "subevent_conditional")


def two_runs(folder: Path) -> list[Path]:
    """Of 40 nli samples the first run has 20 right, the second 30; both have 5 of 10 scq samples right."""
    choices = [choice(100 + n, n < 5) for n in range(10)]
    base = make_run(folder / "base", [*(prediction(n, n < 20) for n in range(40)), *choices])
    # The second file's order differs: pairing goes by id.
    tuned = make_run(folder / "tuned", [*choices, *(prediction(n, n < 30) for n in reversed(range(40)))])
    return [base, tuned]


def lines_of(runs: Sequence[Path], name: str) -> list[list[list[str]]]:
    """The rows of the samples of that name in each table with all columns, without their intervals."""
    tables = comparison_tables(compare_runs(load_runs(runs)), detail=True)
    blocks = [rows for table in tables for block, rows in table.blocks() if block.startswith(name)]
    return [[[cell.split(" [")[0] for cell in row] for row in rows] for rows in blocks]


def test_rows_are_groups_and_all_with_a_score_and_interval_for_each_run(tmp_path: Path) -> None:
    runs = two_runs(tmp_path)
    scores, gains, shares = lines_of(runs, "stories, temporal, nli (40)")
    assert scores == [["base", "50.0", "50.0", "50.0", "0.0"], ["tuned", "75.0", "75.0", "75.0", "0.0"]]
    assert [row[:2] for row in shares] == [
        ["gold", "100.0 / 0.0"], ["base", "50.0 / 50.0 / 0.0"], ["tuned", "75.0 / 25.0 / 0.0"]
    ]  # fmt: skip
    assert [row[:1] + row[1::2] for row in gains] == [["tuned", "+25.0", "+25.0", "+25.0"]]
    _, unchanged = lines_of(runs, "kitchen")
    assert unchanged[0][1] == "+0.0"
    assert [rows[-1][1] for rows in lines_of(runs, "all (50)")] == ["70.0", "+20.0"], "all weighs samples"
    assert len(lines_of(runs[:1], "all")) == 1, "one run has no differences"


def test_the_average_of_a_relation_weighs_its_datasets_alike(tmp_path: Path) -> None:
    others = [choice(n, n < 8, dataset="pantry") for n in range(10)]
    before = make_run(tmp_path / "before", [*(choice(n, n < 20) for n in range(40)), *others])
    after = make_run(tmp_path / "after", [*(choice(n, n < 30) for n in range(40)), *others])
    scores, gains = lines_of([before, after], "average, causal (50)")
    assert [row[1] for row in scores] == ["65.0", "77.5"]  # (50 + 80)/2, (75 + 80)/2
    assert gains[0][1] == "+12.5"


def test_a_p_value_is_starred_only_where_it_survives_the_correction(tmp_path: Path) -> None:
    # Seven of seven fixed: p = 2/2⁷ = 0.016 for one row, but above 0.05 for each of five (four rows and `all`).
    def rows(right: int) -> list[Prediction]:
        places = [(d, n) for d in range(4) for n in range(7)]
        return [choice(n, n < right or d > 0, dataset=f"d{d}", relation=RELATIONS[d]) for d, n in places]

    first, second = make_run(tmp_path / "first", rows(0)), make_run(tmp_path / "second", rows(7))
    comparison = compare_runs(load_runs([first, second]))
    gain = min((row.gains[0].mean for row in comparison.rows), key=lambda gain: gain.p_value)
    assert len(comparison.rows) == 5
    assert gain.p_value == pytest.approx(2 / 2**7, abs=0.004)
    assert gain.adjusted_p == pytest.approx(5 * gain.p_value)  # `all` and `d0` are about as improbable
    assert not gain.significant
    alone = compare_runs(load_runs([make_run(tmp_path / n, rows(r)[:7]) for n, r in (("a", 0), ("b", 7))]))
    assert alone.rows[0].gains[0].mean.significant


def test_set_accuracy_stands_beside_exact_match_for_mcq_alone(tmp_path: Path) -> None:
    def rows(right: bool) -> list[Prediction]:
        sets = [choice(n, False, format="mcq", f1=1.0, set_accuracy=float(right)) for n in range(20)]
        return [*sets, prediction(1, True)]

    runs = [make_run(tmp_path / "first", rows(False)), make_run(tmp_path / "second", rows(True))]
    assert "sets" in comparison_tables(compare_runs(load_runs(runs)))[0].frame.columns
    scores, gains = lines_of(runs, "kitchen")
    assert [(row[2], row[4]) for row in scores] == [("0.0", "0.0"), ("0.0", "100.0")]  # EM, set accuracy
    assert gains[0][7] == "+100.0"
    assert lines_of(runs, "stories")[0][0][4] == "–"


def test_json_holds_the_same_numbers_as_fractions(tmp_path: Path) -> None:
    file = tmp_path / "new" / "out.json"
    assert d2e("compare", *two_runs(tmp_path), "--json", file) == 0
    written = json.loads(file.read_text())
    assert written["labels"] == ["base", "tuned"]
    assert [row["dataset"] for row in written["rows"]] == ["all", "stories", "kitchen"]
    assert written["rows"][1]["cells"][1]["exact_match"]["mean"] == 0.75
    assert written["rows"][0]["gains"][0]["exact_match"]["mean"] == pytest.approx(0.2)
    assert written["rows"][1]["gains"][0]["exact_match"]["p_value"] < 0.01

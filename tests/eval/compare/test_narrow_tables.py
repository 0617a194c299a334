"""Comparisons for a terminal: no line above 100 columns, every run and its scores, verdicts at the end."""

from __future__ import annotations

from pathlib import Path

from eval.compare.compare import Comparison, compare_runs
from eval.compare.narrow_tables import WIDTH, narrow_scores, narrow_tables, verdicts
from eval.compare.runs import load_runs
from eval.compare.tables import with_interval
from eval.compare.verdicts import closing_lines
from eval.score.event_answers import EventScores
from eval.score.scores import score_predictions
from tests.factories import choice, make_run, prediction


def compared(tmp_path: Path, *names: str) -> Comparison:
    """Runs on two groups, choices and free answers; each answers every third sample more than the one before."""
    runs = []
    for place, name in enumerate(names):
        rows = [choice(n, n % 3 <= place) for n in range(60)]
        rows += [prediction(n + 100, n % 3 <= place) for n in range(60)]
        runs.append(make_run(tmp_path / name, rows))
    return compare_runs(load_runs(runs))


def test_no_line_is_wider_than_a_terminal_and_all_numbers_are_there(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "base", "a-run-with-a-name-that-is-much-longer-than-others", "third")
    printed = "\n".join([narrow_tables(comparison), closing_lines(comparison)])
    assert max(map(len, printed.splitlines())) <= WIDTH
    for row in comparison.rows:
        assert f"({row.n:,})" in printed
        for cell in row.cells:
            assert with_interval(cell.mean) in printed
    assert "…" in printed
    assert "much-longer-than-others" in printed


def test_there_is_a_verdict_for_each_run_but_the_first(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "base", "better")
    assert closing_lines(comparison).splitlines() == verdicts(comparison)
    (line,) = verdicts(comparison)
    assert line.startswith("better against base: mean +33.3 [")
    assert line.endswith("p <0.001: higher with 120 samples")


def test_equal_runs_are_not_decided_and_one_run_has_no_verdict(tmp_path: Path) -> None:
    rows = [prediction(n, n % 2 == 0) for n in range(20)]
    runs = [make_run(tmp_path / name, rows) for name in ("one", "two")]
    (line,) = verdicts(compare_runs(load_runs(runs)))
    assert line.endswith("not decided with 20 samples")
    alone = narrow_tables(compare_runs(load_runs(runs[:1])))
    assert "Δ" not in alone
    assert closing_lines(compare_runs(load_runs(runs[:1]))) == ""


def test_set_accuracy_has_its_column_beside_which_names_are_shorter(tmp_path: Path) -> None:
    rows = [choice(n, n % 2 == 0, format="mcq", set_accuracy=float(n % 2 == 0)) for n in range(40)]
    runs = [make_run(tmp_path / name, rows) for name in ("one", "another-with-a-long-name")]
    printed = narrow_tables(compare_runs(load_runs(runs)))
    assert "sets" in printed
    assert "…-long-name" in printed
    assert max(map(len, printed.splitlines())) <= WIDTH


def test_one_runs_scores_are_a_row_a_group() -> None:
    rows = [
        prediction(n, n % 2 == 0, relation="subevent_conditional", dataset="a-dataset-with-a-name") for n in range(40)
    ]
    printed = narrow_scores(
        score_predictions([*rows, *(choice(n + 100, True, format="mcq", set_accuracy=1.0) for n in range(9))])
    )
    assert max(map(len, printed.splitlines())) <= WIDTH
    (line,) = (line for line in printed.splitlines() if line.startswith("kitchen"))
    assert line.split() == [
        "kitchen,",
        "causal,",
        "mcq",
        "9",
        "100.0",
        "[100.0,",
        "100.0]",
        *["100.0"] * 3,
        "0.0",
        "0.0",
    ]
    assert next(line for line in printed.splitlines() if line.startswith("all ")).split()[1] == "49"
    assert "50.0 / 50.0 / 0.0" in printed


def test_a_collapse_to_one_label_is_told_of_one_run_too() -> None:
    rows = [
        prediction(n, n % 2 == 0, gold=["positive" if n % 2 == 0 else "negative"], answer=["positive"])
        for n in range(60)
    ]
    assert "WARNING stories (temporal): collapsed to one label" in narrow_scores(score_predictions(rows))


def test_answers_of_several_events_have_a_table_of_ester_s_own_scores() -> None:
    events = EventScores(token_f1=0.5, event_f1=1, hit_at_1=1, exact_match=0)
    printed = narrow_scores(score_predictions([choice(1, True, dataset="ester", events=events)]))
    (line,) = [line for line in printed.splitlines() if "50.0 [50.0, 50.0]" in line]
    assert line.split() == ["ester,", "causal,", "scq", "1", "50.0", "[50.0,", "50.0]", "100.0", "100.0", "0.0"]
    assert max(map(len, printed.splitlines())) <= WIDTH
    assert "ESTER's own" not in narrow_scores(score_predictions([choice(1, True)]))

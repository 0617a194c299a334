"""Tables of scores, of several runs and of one, their verdicts, and the collapse of an nli model to one label."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eval.compare import runs as runs_module
from eval.compare.compare import Comparison, compare_runs
from eval.compare.figures import collapse_warning, with_interval
from eval.compare.run_tables import score_tables, subset_tables
from eval.compare.runs import load_runs
from eval.compare.tables import comparison_tables
from eval.compare.verdicts import text_of, verdicts
from eval.pages.report.page import render_page
from eval.score.predictions import EventScores, Prediction
from eval.score.scores import score_predictions
from tests.command import output_of
from tests.eval.compare.rows import habit_rows
from tests.factories import choice, make_run, prediction, story


def says(positive: int, negative: int) -> list[Prediction]:
    """So many predictions of each label; every other sample is positive."""
    made = []
    for number, answer in enumerate(["positive"] * positive + ["negative"] * negative):
        gold = "negative" if number % 2 else "positive"
        made.append(prediction(number, answer == gold, gold=[gold], answer=[answer]))
    return made


def compared(tmp_path: Path, *names: str) -> Comparison:
    """Runs on choices and free answers; each answers every third sample more than the one before."""
    runs = []
    for place, name in enumerate(names):
        rows = [choice(n, n % 3 <= place) for n in range(60)]
        rows += [prediction(n + 100, n % 3 <= place) for n in range(60)]
        runs.append(make_run(tmp_path / name, rows))
    return compare_runs(load_runs(runs))


def test_the_terminal_has_every_runs_scores_and_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    comparison = compared(tmp_path, "base", "a-run-with-a-name-that-is-much-longer-than-others", "third")
    printed = text_of(comparison)
    assert max(map(len, printed.splitlines())) <= 100
    for block in comparison.groups:
        assert f"({block.sizes['']:,})" in printed
        assert all(with_interval(block.score(run, "mean")) in printed for run in comparison.labels)
    assert "third scores higher than base: mean +66.7 points [" in printed
    assert "p <0.001, 120 samples." in printed
    assert not {"Δ", "against"} & {*text_of(compared(tmp_path / "alone", "base")).split()}


def test_rows_that_no_run_was_scored_on_are_counted(tmp_path: Path) -> None:
    rows = [prediction(number, True) for number in range(6)]
    runs = load_runs([make_run(tmp_path / name, rows) for name in ("a", "b")])
    assert "bad row" not in text_of(compare_runs(runs))
    runs = [replace(run, scores=run.scores.model_copy(update={"bad_rows": 2})) for run in runs]
    assert "2 bad rows of mini are in no score" in text_of(compare_runs(runs))


def test_markdown_has_the_intervals_and_differences_of_every_metric(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "a|b", "better")
    text = text_of(comparison, "markdown")
    for block in comparison.groups:
        assert all(with_interval(block.score(run, "f1")) in text for run in comparison.labels)
    assert "Δset accuracy" not in text
    assert "(<0.001)" in text, "p is followed by the corrected one"
    assert r"| a\|b " in text


def test_compare_names_the_run_that_collapsed(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "sft", says(40, 0)), make_run(tmp_path / "d2e", says(21, 19))]
    output = output_of("compare", *runs)
    assert "WARNING sft, stories (temporal): collapsed" in output
    assert output.count("WARNING") == 1
    assert "WARNING stories (temporal): collapsed" in score_tables(score_predictions(says(60, 0)))[1].notes[0]


def test_one_runs_scores_are_a_row_for_each_group_and_one_for_all() -> None:
    rows = [prediction(n, n % 2 == 0, dataset="a-dataset") for n in range(40)]
    sets = [choice(n + 100, True, format="mcq", set_accuracy=1.0) for n in range(9)]
    table, labels = score_tables(score_predictions([*rows, *sets]))
    found = {row[0]: row[1:] for row in table.rows()}
    assert found["kitchen, causal, mcq"] == ["9", "100.0 [66.4, 100.0]", *["100.0"] * 3, "0.0"]
    assert found["all"][0] == "49"
    assert labels.rows()[0][2] == "50.0 / 50.0 / 0.0"


def test_answers_of_several_events_have_a_table_of_ester_s_own_scores() -> None:
    events = EventScores(token_f1=0.5, event_f1=1, hit_at_1=1, exact_match=0)
    *_, table = score_tables(score_predictions([choice(1, True, dataset="ester", events=events)]))
    assert table.rows() == [["ester, causal, scq", "1", "50.0 [1.3, 98.8]", "100.0", "100.0", "0.0"]]
    assert len(score_tables(score_predictions([choice(1, True)]))) == 1


def test_free_answers_have_a_table_of_faithfulness_with_refusals_where_a_context_lacks_the_answer() -> None:
    answers = [story(1, None, "It is in the garage"), story(2, None, "kitchen")]
    *_, table = score_tables(score_predictions(answers))
    columns = ["samples", "n", "contained", "context recall", "in context", "claim overlap"]
    assert table.header() == [columns]
    # garage of garage; garage of the context's words, not kitchen
    assert table.rows() == [["habit, temporal, qa", "2", "50.0", "50.0", "50.0", "50.0"]]
    elsewhere = story(4, "irrelevant", "attic", gold=["attic"])  # in none of the rates
    refused = story(3, "unanswerable", "unknown", gold=["unknown"])
    *_, table = score_tables(score_predictions([*answers, elsewhere, refused]))
    assert table.header() == [["samples", "lacking", "refused", "others", "refused wrongly", "right where answerable"]]
    assert table.rows() == [["habit, temporal, qa", "1", "100.0", "2", "0.0", "0.0"]]


def test_a_verdict_says_which_run_refuses_more_rows_where_that_is_decided(tmp_path: Path) -> None:
    def answers(refused: int, wrongly: int) -> list[Prediction]:
        lacking = [story(n, "unanswerable", "unknown" if n < refused else "barn", gold=["unknown"]) for n in range(30)]
        return lacking + [story(n, "aligned", "unknown" if n < 130 + wrongly else "garage") for n in range(130, 160)]

    def refusals(*second: int) -> list[str]:
        rows = {"sft": answers(5, 2), "d2e": answers(*second)}
        runs = [make_run(tmp_path / str(second) / name, own) for name, own in rows.items()]
        return [line for line in verdicts(compare_runs(load_runs(runs))) if "refuses" in line]

    (both,) = refusals(25, 20)
    assert both.startswith(
        "d2e refuses more of the 30 rows that lack the answer and wrongly refuses more of the 30 rows that have it "
        "than sft: +66.7 points ["
    )
    assert both.partition("], ")[2].startswith("+60.0 points [")
    (one,) = refusals(6, 20)
    assert one.startswith("d2e wrongly refuses more of the 30 rows that have it than sft: +60.0 points [")
    (fewer,) = refusals(25, 1)
    assert fewer.startswith("d2e refuses more of the 30 rows that lack the answer than sft: +66.7 points [")
    assert refusals(6, 1) == []


def test_the_cost_of_trainings_is_a_multiple_of_the_first_ones_and_each_log_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    read_file = runs_module.read_json_as
    monkeypatch.setattr(
        runs_module, "read_json_as", lambda kind, file, *rest: read.append(file) or read_file(kind, file, *rest)
    )
    recipe = "model: {name: m}\ndata: {train: x}\ntrain: {output_dir: x}\n"
    logs = {"base": None, "sft": (72, 41.0), "d2e": (36, 61.5)}
    runs = []
    for name, cost in logs.items():
        end = [{"step": cost[0], "train_cpu_seconds": cost[1]}] if cost else []
        runs.append(make_run(tmp_path / name, says(20, 20), history=[{"step": 1, "loss": 2.0}, *end], recipe=recipe))
    said = "Cost of training in processor seconds: sft 41.0 (1.0 ×, 72 steps), d2e 61.5 (1.5 ×, 36 steps)."
    assert said in " ".join(output_of("compare", *runs, "--json", tmp_path / "out.json").split())
    assert json.loads((tmp_path / "out.json").read_text())["costs"]["d2e"] == {"steps": 36, "cpu_seconds": 61.5}
    assert sorted(file for file in read if file.name == "trainer_state.json") == sorted(
        run / "trainer_state.json" for run in runs
    )
    read.clear()
    assert said in render_page(load_runs(runs))
    assert sum(file.name == "trainer_state.json" for file in read) == len(runs)
    assert "Cost of training" not in output_of("compare", *runs[:2])


GOLD = {"positive": 0.5, "negative": 0.5}


def test_one_label_for_nearly_all_is_a_warning_unless_it_is_the_gold_one() -> None:
    collapsed = {"positive": 0.02, "negative": 0.96, "other": 0.02}
    warning = collapse_warning("tracie (temporal)", collapsed, GOLD, 1_000)
    assert warning.startswith(
        "WARNING tracie (temporal): collapsed to one label: 96.0 % of 1,000 answers are 'negative'"
    )
    assert "50.0 %" in warning
    assert collapse_warning("tracie", collapsed, {"positive": 0.04, "negative": 0.96}, 1_000) is None
    assert collapse_warning("tracie", {"positive": 0.06, "negative": 0.94, "other": 0.0}, GOLD, 1_000) is None
    assert collapse_warning("tracie", collapsed, GOLD, 9) is None, "nine answers may agree by chance"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    rights = {"sft": (34, 16), "d2e": (40, 0), "teacher": (39, 30)}
    return [make_run(tmp_path / name, habit_rows(*right)) for name, right in rights.items()]


def test_runs_of_another_model_than_the_one_whose_habits_are_tagged_are_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, habit_rows(39, 16), model=name, tagged_by=["me"]) for name in ("me", "other")]
    assert "Subsets by the habit of me; other is of another model." in " ".join(output_of("compare", *runs).split())


def test_one_run_s_table_has_a_row_a_subset_and_one_for_the_gap() -> None:
    (table,) = subset_tables(score_predictions([*habit_rows(39, 16), prediction(1, True)]))
    rows = table.rows()
    assert [row[1] for row in rows] == ["aligned", "conflict", "gap"]
    assert [row[3].split()[0] for row in rows] == ["97.5", "40.0", "57.5"]
    assert [row[4].split()[0] for row in rows] == ["–", "60.0", "–"]
    assert "1 untagged sample is left out" in table.caption
    assert subset_tables(score_predictions([prediction(1, True)])) == []


def test_subsets_have_a_row_a_run_with_accuracies_gap_and_verdict(runs: list[Path], tmp_path: Path) -> None:
    tables = comparison_tables(compare_runs(load_runs(runs)))
    scores, answers, changes = (table.rows()[-1] for table in tables[:3])
    assert [cell.split()[0] for cell in scores[1:]] == ["97.5", "75.0", "22.5"]
    assert [cell.split()[0] for cell in answers[1:]] == ["25.0", "25.0", "75.0", "25.0", "0.0", "0.0"]
    assert [changes[place].split()[0] for place in (1, 3, 4)] == ["+12.5", "+35.0", "<0.001"]
    output = output_of("compare", *runs, "--json", tmp_path / "tagged.json")
    assert all(cell in output for cell in (*scores, *answers, *changes))
    gain = output.index("teacher uses the context more than sft: +35.0 points [+")
    assert gain < output.index("d2e uses the context less than sft: -40.0 points [-"), "gains come first"
    rows = json.loads((tmp_path / "tagged.json").read_text())["scores"]
    own = {(r["subset"], r["measure"]): r for r in rows if r["part"] == "subsets" and r["run"] == "teacher"}
    assert own["gap", "accuracy"]["mean"] == pytest.approx(0.225)
    assert own["conflict", "accuracy"]["adjusted_p"] < 0.05


def test_options_choose_the_reference_the_subset_and_how_much_is_shown(runs: list[Path]) -> None:
    output = output_of("compare", *runs)
    assert "+75.0 points [" in output_of("compare", *runs, "--reference", "d2e")
    assert "gap" not in output_of("compare", *runs, "--subset", "conflict")
    assert "habit, temporal, qa (80)" not in output, "tables by group are shown with --groups"
    for option in ("--groups", "--wide"):
        assert "habit, temporal, qa (80)" in output_of("compare", *runs, option)
    quiet = output_of("compare", *runs, "--quiet")
    assert {line for line in quiet.splitlines() if line[:4] in ("sft ", "d2e ")} <= {*output.splitlines()}
    assert "d2e uses the context less than sft: " in quiet
    assert ("gap = aligned − conflict" in output, "gap = aligned" in quiet) == (True, False)

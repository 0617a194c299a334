"""Tables of scores, of several runs and of one, their verdicts, and the collapse of an nli model to one label."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.compare.compare import Comparison, compare_runs
from eval.compare.figures import collapse_warning, share_bar, shares_in_percent, with_interval
from eval.compare.runs import load_runs
from eval.compare.tables import score_tables
from eval.compare.verdicts import markdown_text, mean_verdicts, terminal_text
from eval.score.metrics import EventScores
from eval.score.predictions import Prediction
from eval.score.scores import score_predictions
from tests.command import output_of
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


def test_the_terminal_has_every_run_with_its_scores_and_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    comparison = compared(tmp_path, "base", "a-run-with-a-name-that-is-much-longer-than-others", "third")
    printed = terminal_text(comparison)
    assert max(map(len, printed.splitlines())) <= 100
    for row in comparison.rows:
        assert f"({row.n:,})" in printed
        for cell in row.cells:
            assert with_interval(cell.mean) in printed
    assert "third against base: mean +66.7 [" in printed


def test_markdown_has_the_intervals_and_differences_of_every_metric(tmp_path: Path) -> None:
    comparison = compared(tmp_path, "a|b", "better")
    text = markdown_text(comparison)
    for row in comparison.rows:
        assert all(with_interval(cell.f1) in text for cell in row.cells)
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
    assert table.rows() == [["ester, causal, scq", "1", "50.0 [0.0, 100.0]", "100.0", "100.0", "0.0"]]
    assert len(score_tables(score_predictions([choice(1, True)]))) == 1


def test_free_answers_have_a_table_of_faithfulness_with_refusals_where_a_context_lacks_the_answer() -> None:
    answers = [story(1, None, "It is in the garage"), story(2, None, "kitchen")]
    *_, table = score_tables(score_predictions(answers))
    columns = ["samples", "n", "contained", "context recall", "in context", "claim overlap"]
    assert table.header() == [columns]
    # garage of garage; garage of the context's words, not kitchen
    assert table.rows() == [["habit, temporal, qa", "2", "50.0", "50.0", "50.0", "50.0"]]
    *_, table = score_tables(score_predictions([*answers, story(3, "unanswerable", "unknown", gold=["unknown"])]))
    assert table.header() == [[*columns, "refusal", "of"]]
    assert table.rows()[0][-2:] == ["100.0", "1"]


def test_a_verdict_says_higher_or_not_decided_and_one_run_has_none(tmp_path: Path) -> None:
    (line,) = mean_verdicts(compared(tmp_path, "base", "better"))
    assert line.startswith("better against base: mean +33.3 [")
    assert line.endswith("p <0.001: higher with 120 samples")
    rows = [prediction(n, n % 2 == 0) for n in range(20)]
    runs = load_runs([make_run(tmp_path / name, rows) for name in ("one", "two")])
    assert mean_verdicts(compare_runs(runs))[0].endswith("not decided with 20 samples")
    alone = compare_runs(runs[:1])
    assert mean_verdicts(alone) == []
    assert "Δ" not in terminal_text(alone)


GOLD = {"positive": 0.5, "negative": 0.5}


@pytest.mark.parametrize(
    ("shares", "bar"),
    [
        ({"positive": 1.0, "negative": 0.0, "other": 0.0}, "█" * 20),
        ({"positive": 0.5, "negative": 0.25, "other": 0.25}, "█" * 10 + "░" * 5 + "·" * 5),
        ({"positive": 1 / 3, "negative": 1 / 3, "other": 1 / 3}, "█" * 7 + "░" * 6 + "·" * 7),
        (GOLD, "█" * 10 + "░" * 10),
    ],
)
def test_a_bar_is_always_20_characters_long(shares: dict[str, float], bar: str) -> None:
    assert share_bar(shares) == bar


def test_shares_are_in_percent_and_gold_has_no_third() -> None:
    assert shares_in_percent({"negative": 0.008, "positive": 0.992, "other": 0.0}) == "99.2 / 0.8 / 0.0"
    assert shares_in_percent(GOLD) == "50.0 / 50.0"


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

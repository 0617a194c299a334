"""Free answers of runs side by side, by shares of words and by a judge's verdicts; in the tables and on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import with_checksums, write_json
from eval.compare.compare import compare_runs
from eval.compare.faithfulness import (
    JUDGED_FILE,
    Verdict,
    compare_faithfulness,
    judge_answers,
    read_judged,
    read_verdict,
)
from eval.compare.runs import ScoredRun, load_runs
from eval.compare.tables import faithfulness_tables
from eval.pages.report.page import render_page
from tests.command import output_of
from tests.factories import choice, make_run, reply, story
from tests.judge_server import JudgeServer, MakeJudge

SAID = {
    "base": ["Ask my aunt.", "Within 60 days."],  # 0 of 2 words (ask, aunt) and 2 of 3; recall 0 of 3 and 2 of 3
    "tuned": ["Within 30 days.", "Within 30 days."],
}


def runs_of(folder: Path, said: dict[str, list[str]] = SAID, times: int = 10) -> list[Path]:
    runs, choices = [], [choice(n, True) for n in range(3)]
    for name, answers in said.items():
        rows = [reply(2 * n + place, text) for n in range(times) for place, text in enumerate(answers)]
        runs.append(make_run(folder / name, rows + choices))
    return runs


def test_measures_and_their_paired_differences_counted_by_hand(tmp_path: Path) -> None:
    (row,) = compare_faithfulness(load_runs(runs_of(tmp_path)))
    base, tuned = row.runs
    assert (row.dataset, row.n) == ("returns", 20), "choices are no free answers"
    names = ("contained", "in context", "context recall", "claim overlap")
    assert {name: score.mean for name, score in base.scores.items()} == pytest.approx(
        dict(zip(names, (0, 1 / 3, 1 / 3, 1 / 3), strict=True))
    )
    assert {name: score.mean for name, score in tuned.scores.items()} == dict.fromkeys(names, 1)
    assert not base.changes
    for name, change in tuned.changes.items():
        assert change.mean == pytest.approx(1 if name == "contained" else 2 / 3)
        assert change.adjusted_p >= change.p_value


def test_a_sample_that_one_run_has_no_value_of_is_in_neither_side_of_the_difference(tmp_path: Path) -> None:
    said = {"base": ["That is it.", "Within 60 days."], "tuned": ["Within 30 days.", "Within 60 days."]}
    (row,) = compare_faithfulness(load_runs(runs_of(tmp_path, said)))
    assert row.runs[1].changes["in context"].mean == 0, "the first sample of base says function words alone"
    assert row.runs[1].changes["context recall"].mean == pytest.approx(1 / 2)


def test_datasets_have_a_row_each_and_one_together_and_other_formats_none(tmp_path: Path) -> None:
    rows = [reply(0, "Within 30 days."), reply(1, "No.", dataset="hours")]
    (run,) = load_runs([make_run(tmp_path / "run", rows)])
    assert [(row.dataset, row.n) for row in compare_faithfulness([run])] == [("returns", 1), ("hours", 1), ("all", 2)]
    other = load_runs([make_run(tmp_path / "other", [choice(1, True)])])
    assert compare_faithfulness(other) == ()
    assert "faithfulness" not in compare_runs(other).to_json()


def test_d2e_compare_and_the_report_show_them(tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    printed = output_of("compare", *runs, "--json", tmp_path / "c.json")
    assert "in context" in printed
    assert re.search(r"tuned +100\.0 \[83\.2, 100\.0\] \*", printed), "a star marks a difference"
    assert json.loads((tmp_path / "c.json").read_text())["faithfulness"][0]["runs"][1]["changes"]["in context"]
    wide = output_of("compare", *runs, "--wide")
    assert "Δ context recall" in wide
    assert "+66.7 [" in wide
    heads = [line for line in wide.splitlines() if "context recall" in line and "run" in line]
    assert len(heads) == 2, "scores and differences have a table each, so that both fit a page"
    page = render_page(load_runs(runs))
    assert page.index('href="#faithfulness"') < page.index('<section id="faithfulness">')
    assert "Δ context recall" in page


def test_they_stand_beside_the_habit_gap_of_swapped_contexts(tmp_path: Path) -> None:
    rows = [
        reply(n, "Within 30 days.", subset=subset, habit=["60"])
        for n, subset in enumerate(["aligned", "conflict"] * 20)
    ]
    runs = [make_run(tmp_path / name, rows) for name in ("one", "two")]
    printed = output_of("compare", *runs)
    assert printed.index("gap") < printed.index("in context"), "a benchmark about subsets"
    page = render_page(load_runs(runs))
    assert page.index("Scores by subset</h2>") < page.index('<section id="faithfulness">')
    tagged = story(1, "conflict", "garage", format="scq", options=["garage", "kitchen"])
    tagged = render_page(load_runs([make_run(tmp_path / "stories", [tagged])]))
    assert "faithfulness" not in tagged


def test_a_judges_verdicts_are_shown_of_the_runs_that_have_them(
    tmp_path: Path, server: JudgeServer, judge: MakeJudge
) -> None:
    runs = load_runs(runs_of(tmp_path))
    server.reply = lambda user: "Verdict: supported, " + ("incorrect" if "60" in user else "correct")
    judge_answers(runs[1], judge(), JudgeOptions())
    (row,) = compare_faithfulness(runs)
    assert "supported" not in row.runs[0].scores
    assert (row.runs[1].scores["supported"].mean, row.runs[1].scores["correct"].mean) == (1, 1)
    assert "supported" not in row.runs[1].changes, "the first run was not judged"
    (table,) = faithfulness_tables(compare_runs(runs), words=False)
    assert "100.0 [83.2, 100.0]" in table.markdown()
    assert (runs[1].folder / JUDGED_FILE).is_file()
    assert "says what the gold answer says" in render_page(runs)


def scored(folder: Path, *said: str) -> ScoredRun:
    rows = [reply(number, text) for number, text in enumerate(said)]
    (run,) = load_runs([make_run(folder, [*rows, choice(99, True), reply(98, "Hello.", context="")])])
    return run


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("So it is.\nVerdict: supported, correct", Verdict(supported=True, correct=True, reason="So it is.")),
        ("**Verdict:** Unsupported,  INCORRECT.", Verdict(supported=False, correct=False, reason="")),
        ("Verdict: supported", None),
        ("Verdict: correct, supported", None),
        ("Verdict: supported, correct, or not", None),
        ("Verdict: supported, correct\nOr is it?", None),
    ],
)
def test_a_verdict_is_read_from_the_last_line_and_never_guessed(text: str, verdict: Verdict | None) -> None:
    assert read_verdict(text) == verdict


def test_the_judge_sees_context_question_answer_and_gold_and_what_it_says_is_kept(
    tmp_path: Path, server: JudgeServer, judge: MakeJudge
) -> None:
    run = scored(tmp_path / "run", "Within 30 days.", "Within 60 days.", "It depends.")
    verdicts = {"60": "No, 30.\nVerdict: unsupported, incorrect", "depends": "who knows"}
    server.reply = lambda user: next(
        (text for word, text in verdicts.items() if word in user), "Verdict: supported, correct"
    )
    asked = judge_answers(run, judge(), JudgeOptions())
    assert asked == [
        Verdict(supported=True, correct=True, reason=""),
        Verdict(supported=False, correct=False, reason="No, 30."),
        None,
    ]
    assert min(server.users) == (  # of several that are asked at a time
        "Text: Goods may be returned within 30 days. A receipt is needed.\n"
        "Question: How long may I return my lamp number 0?\n"
        "The model's answer:\n<<<\nWithin 30 days.\n>>>\nReference answer:\nWithin 30 days."
    )
    assert len(server.users) == 4, "three answers, and the one without a verdict once more"
    kept = read_judged(run)
    assert kept == {("returns", "s0"): asked[0], ("returns", "s1"): asked[1]}


def test_verdicts_on_other_answers_are_refused(tmp_path: Path, server: JudgeServer, judge: MakeJudge) -> None:
    server.reply = lambda user: "Verdict: supported, correct"
    run = scored(tmp_path / "run", "Within 30 days.", "No.")
    assert read_judged(run) is None, "nothing was judged"
    judge_answers(run, judge(), JudgeOptions())
    other = scored(tmp_path / "run", "Within 30 days.", "Yes.")
    with pytest.raises(UserError, match=r"1 of the 2 answers .* not those that were judged, such as 's1' of returns"):
        read_judged(other)
    write_json(run.folder / JUDGED_FILE, with_checksums({"judge": {}, "answers": [{"id": "s0"}]}))
    with pytest.raises(UserError, match="not verdicts on answers"):
        read_judged(run)

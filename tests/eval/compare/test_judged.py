"""What a judge says: error patterns, also by taking the context away, and verdicts on free answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import with_checksums, write_json
from eval.compare.compare import compare_runs
from eval.compare.judged import (
    JUDGED_FILE,
    ErrorPattern,
    JudgedError,
    Verdict,
    error_prompts,
    find_error_patterns,
    judge_answers,
    read_error,
    read_judged,
    read_verdict,
)
from eval.compare.runs import ScoredRun, load_runs
from eval.compare.tables import faithfulness_tables
from eval.pages.report.page import render_page
from eval.score.predictions import Prediction
from tests.factories import choice, make_run, prediction, reply
from tests.judge_server import JudgeServer, MakeJudge


def wrong(number: int = 0, **changes: Any) -> Prediction:
    fields: dict[str, Any] = {
        "id": f"p{number}",
        "format": "qa",
        "context": f"Rain fell for {number} days, so the river rose.",
        "question": "Why did the river rise?",
        "gold": ["rain", "rainfall"],
        "output": f"Snow melts in spring, {number}.\nThe answer is: the snow",
        "answer": ["the snow"],
    }
    return prediction(number, False, **{**fields, **changes})


SETS = {"format": "mcq", "options": ["a", "b", "c"], "gold": ["a"], "answer": ["b", "c"]}


def test_patterns_and_reasons_come_in_the_order_of_the_predictions(server: JudgeServer, judge: MakeJudge) -> None:
    words = {"0 days": "neglect", "1 days": "position", "2 days": "other", "3 days": "perhaps neglect"}
    server.reply = lambda user: "It is so.\nError: " + next(word for days, word in words.items() if days in user)
    asked = judge()
    assert find_error_patterns([wrong(number) for number in range(4)], asked) == [
        JudgedError(ErrorPattern.NEGLECT_CONTEXT, "It is so."),
        JudgedError(ErrorPattern.INACCURATE_POSITION, "It is so."),
        JudgedError(ErrorPattern.OTHER, "It is so."),
        JudgedError(ErrorPattern.UNDECIDED, "the judge named no pattern"),
    ]
    assert (asked.usage.reasked, asked.usage.undecided) == (1, 1)


@pytest.mark.parametrize(
    "reply", ["", "neglect", "Error: neglect_context", "Error: neglect, position", "Error: neglect\nor not"]
)
def test_a_pattern_is_not_guessed(reply: str) -> None:
    assert read_error(reply) is None


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, "Context: Rain fell for 0 days, so the river rose.\nQuestion: Why did the river rise?"),
        ({}, "<<<\nSnow melts in spring, 0.\nThe answer is: the snow\n>>>\nRight answer:\nrain\nrainfall"),
        ({"format": "nli", "gold": ["positive"]}, "Premise: Rain fell"),
        ({"format": "scq", "options": ["rain", "snow"], "gold": ["rain"]}, "Options:\n(A) rain\n(B) snow"),
        ({"format": "mcq", "options": ["a", "b", "c"], "gold": ["a", "c"]}, "Right answer:\n(A) a\n(C) c"),
    ],
)
def test_a_prompt_shows_all_that_the_model_saw_and_wrote(changes: dict[str, Any], shown: str) -> None:
    (prompt,) = error_prompts([wrong(**changes)])
    assert shown in prompt.user
    for word in ("neglect", "position", "other"):
        assert f"\n{word} - " in prompt.system


@pytest.mark.parametrize(
    ("own", "without", "pattern"),
    [
        (wrong(), ["snow."], ErrorPattern.UNCHANGED),
        (wrong(), ["rain"], ErrorPattern.UNDECIDED),
        (wrong(), None, ErrorPattern.UNDECIDED),
        (wrong(extraction="none"), ["the snow"], ErrorPattern.OTHER),
        (wrong(context=" "), ["the snow"], ErrorPattern.UNDECIDED),
        (wrong(**SETS), ["c", "b"], ErrorPattern.UNCHANGED),
        (wrong(**SETS), ["b"], ErrorPattern.UNDECIDED),
    ],
)
def test_by_rule_an_answer_is_unchanged(own: Prediction, without: list[str] | None, pattern: ErrorPattern) -> None:
    answers = {("other", "p0"): own.answer} | ({} if without is None else {("stories", "p0"): without})
    (error,) = find_error_patterns([own], None, without_context=answers)
    assert error.pattern is pattern
    assert error.reason


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


def test_the_judge_sees_all_and_what_it_says_is_kept(tmp_path: Path, server: JudgeServer, judge: MakeJudge) -> None:
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


def test_verdicts_are_shown_of_the_runs_that_have_them(tmp_path: Path, server: JudgeServer, judge: MakeJudge) -> None:
    runs = load_runs([make_run(tmp_path / name, [reply(n, "Within 30 days.") for n in range(20)]) for name in "ab"])
    server.reply = lambda user: "Verdict: supported, correct"
    judge_answers(runs[1], judge(), JudgeOptions())
    comparison = compare_runs(runs)
    (block,) = comparison.blocks("faithfulness", "dataset")
    assert block.score("a", "supported") is None
    score = block.score("b", "supported")
    assert (score.mean, score.change) == (1, None), "the first run was not judged"
    (table,) = faithfulness_tables(comparison, words=False)
    assert "100.0 [83.2, 100.0]" in table.markdown()
    assert "says what the gold answer says" in render_page(runs)

"""A judge's verdicts on free answers: asked, read, kept, and refused where they are about other answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from eval.compare.judged_answers import JUDGED_FILE, Verdict, judge_answers, read_judged, read_verdict
from eval.compare.runs import ScoredRun, load_runs
from tests.factories import choice, make_run, reply
from tests.judge_server import JudgeServer, MakeJudge


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
    (run.folder / JUDGED_FILE).write_text(json.dumps({"judge": {}, "answers": [{"id": "s0"}]}))
    with pytest.raises(UserError, match="not verdicts on answers"):
        read_judged(run)

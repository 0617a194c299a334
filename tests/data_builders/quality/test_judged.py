"""The quality filter: the judge's closing verdict, and the rule for free text."""

from __future__ import annotations

from typing import Any

import pytest

from data_builders.quality.judged import JudgedVerdict, judge_quality, quality_prompts, read_verdict
from tests.judge_server import JudgeServer, MakeJudge
from tests.tiny import make_sample, make_samples

NLI = {"format": "nli", "context": "Ann slept.", "question": "Ann woke before she slept.", "answers": ["negative"]}
SCQ = {"format": "scq", "options": ["rain", "snow"], "answers": ["snow"]}
MCQ = {"format": "mcq", "options": ["rain", "snow", "hail"], "answers": ["rain", "hail"]}


def test_verdicts_come_in_the_order_of_the_samples(server: JudgeServer, judge: MakeJudge) -> None:
    def reply(user: str) -> str:
        return "It says so.\nVerdict: " + ("supported" if "2 days" in user else "unsupported")

    server.reply = reply
    verdicts = judge_quality(make_samples(4), judge())
    assert verdicts == [
        JudgedVerdict.UNSUPPORTED,
        JudgedVerdict.UNSUPPORTED,
        JudgedVerdict.SUPPORTED,
        JudgedVerdict.UNSUPPORTED,
    ]


def test_a_verdict_that_is_nowhere_stated_is_undecided(server: JudgeServer, judge: MakeJudge) -> None:
    server.reply = lambda user: "It is clearly supported by the context."
    asked = judge()
    assert judge_quality(make_samples(2), asked) == [JudgedVerdict.UNDECIDED, JudgedVerdict.UNDECIDED]
    assert asked.usage.undecided == 2
    assert server.users[-1].endswith(
        '(Your last line must be exactly "Verdict: supported" or "Verdict: unsupported".)'
    )


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Because.\nVerdict: supported", JudgedVerdict.SUPPORTED),
        ("**Verdict: unsupported**.", JudgedVerdict.UNSUPPORTED),
        ("Verdict: undecided", None),
        ("Verdict: not_judged", None),
        ("Verdict: not supported", None),
        ("Verdict: supported or unsupported", None),
        ("Verdict: supported\nOn second thought, it is not.", None),
        ("", None),
    ],
)
def test_only_the_two_verdicts_are_read(reply: str, verdict: JudgedVerdict | None) -> None:
    assert read_verdict(reply) is verdict


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (NLI, "Premise: Ann slept.\nHypothesis: Ann woke before she slept.\n"),
        (NLI, "Given answer: negative"),
        (SCQ, "Options:\n(A) rain\n(B) snow\nGiven answer: (B) snow"),
        (MCQ, "Given answer:\n(A) rain\n(C) hail"),
        ({"answers": ["the river", "a river"]}, "Given answer:\nthe river\na river"),
    ],
)
def test_a_prompt_shows_the_sample_in_its_format(fields: dict[str, Any], shown: str) -> None:
    (prompt,) = quality_prompts([make_sample(**fields)])
    assert shown in prompt.user
    assert "Verdict: supported" in prompt.system
    assert "Verdict: unsupported" in prompt.system
    assert prompt.label == "sample 's0' of 'made-up'"


def test_braces_in_a_sample_are_text() -> None:
    (prompt,) = quality_prompts([make_sample(context="Set {question} to {x}.", question="What is {context}?")])
    assert "Set {question} to {x}." in prompt.user
    assert "What is {context}?" in prompt.user


@pytest.mark.parametrize(
    ("context", "answers", "verdict"),
    [
        ("The dam burst and flooded the valley.", ["a flood"], JudgedVerdict.SUPPORTED),
        ("The dam burst.", ["a flood"], JudgedVerdict.UNSUPPORTED),
        ("The dam burst.", ["a flood", "the bursting of the dam"], JudgedVerdict.SUPPORTED),
        ("The house was sold.", ["it was not sold"], JudgedVerdict.UNSUPPORTED),
        ("She gave it to her.", ["to her"], JudgedVerdict.SUPPORTED),
        ("Nobody came.", ["to her"], JudgedVerdict.UNSUPPORTED),
        ("In 1971 he left.", ["1971"], JudgedVerdict.SUPPORTED),
        ("In 1971 he left.", ["1972"], JudgedVerdict.UNSUPPORTED),
        ("Anything.", ["?!"], JudgedVerdict.UNSUPPORTED),
        ("", ["rain"], JudgedVerdict.UNSUPPORTED),
    ],
)
def test_the_rule_looks_for_the_content_words_of_an_answer(
    context: str, answers: list[str], verdict: JudgedVerdict
) -> None:
    assert judge_quality([make_sample(context=context, answers=answers)], None) == [verdict]


@pytest.mark.parametrize("fields", [NLI, SCQ, MCQ])
def test_other_formats_have_no_rule(fields: dict[str, Any]) -> None:
    assert judge_quality([make_sample(**fields)], None) == [JudgedVerdict.NOT_JUDGED]

"""A verdict is read from the closing line, in its form, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.prompts import SETTINGS, load_prompt_set
from d2e_sft.judge.templates import closing_value, load_templates, without_closing
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Verdict: supported", "supported"),
        ("The text says so.\nVerdict: supported", "supported"),
        ("The text says so.\n\n**Verdict: supported**\n\n", "supported"),
        ("**Verdict:** Supported.", "supported"),
        ("```\nverdict :  SUPPORTED\n```", "supported"),
        ("Verdict: unsupported? No:\nVerdict: supported", "supported"),
        ("Verdict: supported, or unsupported", "supported, or unsupported"),
        ("Verdict: supported!", "supported!"),
        ("Verdict: not supported", "not supported"),
        ("Verdict: supported (mostly)", "supported (mostly)"),
        ("", None),
        ("\n \n", None),
        ("supported", None),
        ("The answer is supported.", None),
        ("Verdict: supported\nI hope that helps.", None),
        ("So my Verdict: supported", None),
        ("Verdict supported", None),
        ("My verdict: supported", None),
    ],
)
def test_the_whole_value_of_a_closing_line_in_its_form_is_read(reply: str, value: str | None) -> None:
    assert closing_value(reply, "Verdict") == value


def test_the_reasoning_is_what_stands_above() -> None:
    assert without_closing("One.\nTwo.\n\nVerdict: supported\n```\n") == "One.\nTwo."
    assert without_closing("Verdict: supported") == ""


def test_the_skeletons_of_the_paper_tutorial_are_prompts(tmp_path: Path) -> None:
    text = Path("docs/tutorials/paper.md").read_text(encoding="utf-8")
    prompts, judge = (block.partition("```")[0] for block in text.split("```yaml\n")[1:3])
    (tmp_path / "prompts.yaml").write_text(prompts, encoding="utf-8")
    (tmp_path / "judge.yaml").write_text(judge, encoding="utf-8")
    wording = load_prompt_set(str(tmp_path / "prompts.yaml"))
    sample = make_sample(format="nli", context="It rained.", question="It was wet.", answers=["positive"])
    for setting in SETTINGS:
        assert "It was wet." in wording.in_setting(setting).messages(sample, "original")[-1]["content"]
    quality, error = (
        load_templates(Path("none"), job, tmp_path / "judge.yaml") for job in ("quality", "error_pattern")
    )
    assert quality.prompt(sample, "sample", ["positive"]).messages == [
        {"role": "user", "content": "TEXT Premise: It rained.\nQuestion: It was wet.\nAnswer: positive\nTEXT"}
    ]
    assert quality.closed("Because.\nSo, TEXT  wrong.") == "Because.\nVerdict: unsupported"
    assert error.closed("Because.\n**So, text two**") == "Because.\nError: position"
    for other in ("Because.", "TEXT one or TEXT two"):
        assert error.closed(other) == other, "no ending, or two: the judge is asked again"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("quallity: {}", "got 'quallity'; expected some of quality, .* Did you mean 'quality'"),
        ("quality: {task: x}", "quality.*reminder: missing|reminder"),
        ("- x", "not a YAML file of prompts"),
    ],
)
def test_damaged_prompts_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        load_templates(Path("none"), "quality", tmp_path / "judge.yaml")


def test_a_wrong_placeholder_or_a_missing_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        'quality: {task: "", reminder: x, formats: {qa: {sample: "{Context}"}}}', encoding="utf-8"
    )
    own = load_templates(Path("none"), "quality", tmp_path / "judge.yaml")
    with pytest.raises(UserError, match=r"got \{Context\}; expected some of \{context\}"):
        own.prompt(make_sample(), "sample", ["x"])
    with pytest.raises(UserError, match="no format nli"):
        own.prompt(make_sample(format="nli", answers=["positive"]), "sample", ["positive"])

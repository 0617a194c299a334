"""A verdict is read from the closing line, in its form, or not at all."""

from __future__ import annotations

import pytest

from d2e_sft.judge.templates import closing_value, without_closing


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

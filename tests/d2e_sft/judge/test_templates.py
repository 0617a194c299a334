"""A verdict is read from the closing line, in its form, or not at all."""

from __future__ import annotations

import pytest

from d2e_sft.judge.templates import closing_value, without_closing


@pytest.mark.parametrize(
    "reply",
    [
        "Verdict: supported",
        "The text says so.\nVerdict: supported",
        "The text says so.\n\n**Verdict: supported**\n\n",
        "**Verdict:** Supported.",
        "```\nverdict :  SUPPORTED\n```",
        "Verdict: unsupported? No:\nVerdict: supported",
    ],
)
def test_the_closing_form_is_read(reply: str) -> None:
    assert closing_value(reply, "Verdict") == "supported"


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "\n \n",
        "supported",
        "The answer is supported.",
        "Verdict: supported\nI hope that helps.",
        "So my Verdict: supported",
        "Verdict supported",
        "My verdict: supported",
    ],
)
def test_another_form_is_not(reply: str) -> None:
    assert closing_value(reply, "Verdict") is None


@pytest.mark.parametrize("value", ["supported, or unsupported", "supported!", "not supported", "supported (mostly)"])
def test_a_value_is_taken_whole(value: str) -> None:
    assert closing_value(f"Verdict: {value}", "Verdict") == value


def test_the_reasoning_is_what_stands_above() -> None:
    assert without_closing("One.\nTwo.\n\nVerdict: supported\n```\n") == "One.\nTwo."
    assert without_closing("Verdict: supported") == ""

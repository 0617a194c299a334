"""Clauses and phrases that the answer does not need are left out of the refined context."""

from __future__ import annotations

from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from data_builders.build.options import parse_settings
from data_builders.refine.rules import RefinerOptions, refine
from tests.tiny import make_sample

BANK = "However, we think that rates fell in May because the bank, a state firm, sold bonds, which hurt exporters."
WAR = "In June, a war began (far away). It lasted years. Then, oddly, Ann moved to Oslo, where she sold boats."


def _refined(context: str, options: dict[str, Any] | None = None, **changes: object) -> str | None:
    fields = {"context": context, "refined_context": None, "relation": "causal", "format": "qa", **changes}
    return refine(make_sample(**fields), RefinerOptions(**(options or {}))).refined_context


@pytest.mark.parametrize(
    ("context", "question", "answer", "refined"),
    [
        # What neither question nor answer names goes, with its comma; what others need stays.
        (BANK, "Why did rates fall?", "the bank sold bonds", "Rates fell in May because the bank sold bonds."),
        (BANK, "What did the bank sell?", "bonds", "Rates fell in May because the bank sold bonds."),
        (
            BANK,
            "Who was hurt?",
            "exporters",
            "Rates fell in May because the bank sold bonds, which hurt exporters.",
        ),
        # A phrase that the question repeats goes, if the answer does not hold it.
        (
            "Rates fell in May due to the bank.",
            "Why did rates fall?",
            "the bank",
            "Rates fell in May due to the bank.",
        ),
        (
            "Firms cut jobs over the past year due to fear.",
            "Why is it that firms cut jobs over the past year?",
            "fear",
            "Firms cut jobs due to fear.",
        ),
        # "As a result" links two sentences that stay.
        (
            "Rain fell, oddly. As a result, the dam broke.",
            "Why is it that the dam broke?",
            "Rain fell",
            "Rain fell. As a result, the dam broke.",
        ),
        # The only sentence stays whole where it only implies the answer.
        ("Oddly, the lake froze in May.", "What was it like?", "cold", "Oddly, the lake froze in May."),
    ],
)
def test_clauses_that_the_answer_does_not_need_go(context: str, question: str, answer: str, refined: str) -> None:
    assert _refined(context, question=question, answers=[answer]) == refined


def test_times_and_clauses_stay_where_the_order_of_events_is_asked() -> None:
    asked = {"question": "Ann moved before the war began", "format": "nli", "answers": ["negative"]}
    kept = "In June, a war began. It lasted years. Then, Ann moved to Oslo, where she sold boats."
    assert _refined(WAR, relation="temporal", meta={"events": ["Ann moved", "a war began"]}, **asked) == kept


def test_whole_sentences_stay_on_request() -> None:
    asked = {"question": "Why did rates fall?", "answers": ["the bank sold bonds"]}
    assert _refined(BANK, {"unit": "sentence"}, **asked) == BANK
    with pytest.raises(UserError, match="got 'word'; Input should be 'clause' or 'sentence'"):
        parse_settings(["refine.unit=word"], [])

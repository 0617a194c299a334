"""Causal questions are grammatical, have the right relation, and are refused if no wording fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, phrase_at


@pytest.mark.parametrize(
    ("passage", "cause", "effect", "link", "for_cause", "for_effect"),
    yaml.safe_load(Path(__file__).with_name("causal_questions.yaml").read_text(encoding="utf-8")),
)
def test_questions_fit_their_phrases(
    passage: str, cause: str, effect: str, link: Link, for_cause: str | None, for_effect: str | None
) -> None:
    cases, start, at = Cases(["the firm, of prices and sales"]), passage.index(cause), passage.index(effect)
    first = phrase_at(passage, start, start + len(cause), cases)
    subject = first.end if first.kind == "noun" else None
    phrases = (first, phrase_at(passage, at, at + len(effect), cases, subject))
    asked = [ask(*phrases, link) for ask in (ask_for_cause, ask_for_effect)]
    assert [question and question.text for question in asked] == [for_cause, for_effect]
    for question, answer in zip(asked, phrases, strict=True):
        if question:
            assert question.answer == answer.text
            assert (question.relation == "counterfactual") == ("if it were not for" in question.text)

"""Causal questions are grammatical, have the right relation, and are refused if no wording fits."""

from __future__ import annotations

import pytest

from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at


def pair(passage: str, cause: str, effect: str) -> tuple[Phrase, Phrase]:
    cases = Cases(["the firm, of prices and sales"])
    first = phrase_at(passage, passage.index(cause), passage.index(cause) + len(cause), cases)
    assert first is not None
    at = passage.index(effect)
    second = phrase_at(passage, at, at + len(effect), cases, first.end if first.kind == "noun" else None)
    assert second is not None
    return first, second


@pytest.mark.parametrize(
    ("passage", "cause", "effect", "link", "for_cause", "for_effect"),
    [
        (
            "Sales fell because prices rose.",
            "prices rose",
            "Sales fell",
            "cause",
            "Why is it that sales fell?",
            "What would not be the case if it were not for the fact that prices rose?",
        ),
        (
            "The deal led to a loss of clients.",
            "The deal",
            "a loss of clients",
            "cause",
            "What leads to a loss of clients?",
            "What would there not be if it were not for the deal?",
        ),
        (
            "Due to the grant, the firm could build a plant.",
            "the grant",
            "the firm could build a plant",
            "enable",
            "What helps explain why the firm could build a plant?",
            "What would not be the case if it were not for the grant?",
        ),
        (
            "The firm has many plants to serve clients.",
            "The firm has many plants",
            "serve clients",
            "enable",
            "What makes it possible to serve clients?",
            "What would not be possible if it were not for the fact that the firm has many plants?",
        ),
        (
            "A strike could halt work.",
            "A strike",
            "halt work",
            "prevent",
            "What could halt work?",
            "What could a strike do?",
        ),
        (
            "The scale creates a moat.",
            "The scale",
            "creates a moat",
            "cause",
            "What creates a moat?",
            "What does the scale do?",
        ),
        (
            "The firm has raised its prices, driving clients away.",
            "The firm has raised its prices",
            "driving clients away",
            "cause",
            "What is driving clients away?",
            "What is the effect of the fact that the firm has raised its prices?",
        ),
        (
            "With the grant, we expect sales to rise.",
            "the grant",
            "sales to rise",
            "cause",
            "Why do we expect sales to rise?",
            None,
        ),
        # No question about an "it", or for an effect of a condition.
        ("It fell because it has debts.", "it has debts", "It fell", "cause", None, None),
        (
            "Sales will fall if prices are raised.",
            "prices are raised",
            "Sales will fall",
            "cause",
            "Why is it that sales will fall?",
            None,
        ),
        # No question about an aim, another subject's action, a continuing verb, or a noun nearer to "that".
        ("Prices are capped so that luxury is out.", "luxury is out", "Prices are capped", "cause", None, None),
        ("We are raising our forecast due to a strike.", "a strike", "raising our forecast", "cause", None, None),
        (
            "A strike continues to halt the work.",
            "A strike",
            "halt the work",
            "enable",
            "What continues to halt the work?",
            None,
        ),
        ("A strike hurt trade and continues to halt work.", "A strike", "to halt work", "enable", None, None),
        (
            "We think that sold goods will be lower, given the strike.",
            "the strike",
            "sold goods will be lower",
            "cause",
            None,
            None,
        ),
        # No question across a "but", or about a lack.
        ("The firm has hedged, but sales will fall.", "The firm has hedged", "sales will fall", "cause", None, None),
        (
            "It is new, but prices could fall because rates rose.",
            "rates rose",
            "prices could fall",
            "cause",
            "Why is it that prices could fall?",
            "What would not be the case if it were not for the fact that rates rose?",
        ),
        (
            "Due to no debt, sales have risen.",
            "no debt",
            "sales have risen",
            "cause",
            "Why is it that sales have risen?",
            None,
        ),
        # An answer must be informative on its own.
        ("This is bad because prices rose.", "prices rose", "This is bad", "cause", None, None),
        # An identity is not an effect, and a supplied firm is not caused.
        ("Its network forms the heart of its moat.", "network", "the heart of its moat", "enable", None, None),
        ("A deal is a drag on growth.", "A deal", "a drag on growth", "cause", None, None),
        (
            "With the strike, there is a lack of parts.",
            "the strike",
            "a lack of parts",
            "cause",
            "What leads to a lack of parts?",
            "What would there not be if it were not for the strike?",
        ),
        (
            "A new plan is likely to attract clients.",
            "A new plan",
            "attract clients",
            "enable",
            "What is likely to attract clients?",
            None,
        ),
        ("Firms that are likely to gain from a new plan.", "a new plan", "to gain", "enable", None, None),
        (
            "The margins are exposed to the health of trade.",
            "the health of trade",
            "The margins",
            "prevent",
            None,
            None,
        ),
    ],
)
def test_questions_fit_their_phrases(
    passage: str, cause: str, effect: str, link: Link, for_cause: str | None, for_effect: str | None
) -> None:
    phrases = pair(passage, cause, effect)
    asked = [ask(*phrases, link) for ask in (ask_for_cause, ask_for_effect)]
    assert [question and question.text for question in asked] == [for_cause, for_effect]
    for question, answer in zip(asked, phrases, strict=True):
        if question:
            assert question.answer == answer.text
            assert (question.relation == "counterfactual") == ("if it were not for" in question.text)

"""Spans get a kind if the words in them and around them agree, otherwise none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at

CASES = Cases(["The low prices, a strike and some demand; in New York and at Target they rose."])


def phrase(marked: str, subject: str = "") -> Phrase | None:
    """The phrase of the span between | and | in a passage."""
    before, span, after = marked.split("|")
    passage = before + span + after
    end = passage.index(subject) + len(subject) if subject else None
    return phrase_at(passage, len(before), len(before) + len(span), CASES, end)


@pytest.mark.parametrize(
    ("marked", "kind", "text"),
    [
        ("Firms closed because |sales fell|.", "clause", "sales fell"),
        ("Firms closed because of |falling sales| in May.", None, ""),  # "in May" may belong to it
        ("Firms closed because of |falling sales|.", "noun", "falling sales"),
        ("It made |a more viable class|.", "noun", "a more viable class"),
        ("Sales fell as |a new rival entered|.", "clause", "a new rival entered"),
        ("As rates rose, |the risk to funding remains|.", "clause", "the risk to funding remains"),
        ("The |new strike| halted work.", "noun", "The new strike"),  # with its article
        ("Rates rose, |driving prices up|.", "gerund", "driving prices up"),
        ("It borrows |to buy land|.", "infinitive", "to buy land"),
        ("It borrows to |buy land|.", "infinitive", "to buy land"),
        ("A strike could |halt work|.", "bare", "halt work"),
        ("It has a tool that |helps users|.", "finite", "helps users"),
        ("We expect |prices to rise|.", "complement", "prices to rise"),
        ("We think |that demand will grow|.", "clause", "demand will grow"),
        (
            "Due to |the high cost that can arise when it fails|, they wait.",
            "noun",
            "the high cost that can arise when it fails",
        ),
    ],
)
def test_a_span_has_the_kind_that_its_words_show(marked: str, kind: str | None, text: str) -> None:
    found = phrase(marked)
    assert (found and found.kind, found.text if found else "") == (kind, text)


@pytest.mark.parametrize(
    "marked",
    [
        "They close |because sales fell and| leave.",  # ends in the middle
        "It saw the |chance| of a deal.",  # continues
        "It has a |chance| that buyers wait.",
        "A sh|ift in dem|and came.",  # ends within a word
        "Prices |rose (by a third| in May).",  # ends within a bracket
        "We saw it. |They left. It fell|.",  # two sentences
        "Growth came |with less debt|.",  # begins with a preposition
        "The firm knows |the car, and repair is slow|.",  # lacks the beginning of its clause
        "They left, |as debt rose because of rates|.",  # holds a cause of its own
        "Sales rely on Acme's |new model|.",  # its owner is outside
        f"|{'very ' * 50}long text| is long.",
        "With |switching costs negligible|, clients leave.",  # a subject and its predicate
        "With |size the only way|, they grow.",
        "It makes |the class more viable to use|.",
        "We think |the leader to have more brands|.",
        "Sales rise as |we forecast to grow|.",
        "Due to |the rate rate|, they wait.",  # a typing error
        "It makes |this plant difficult to copy|.",
        "We know that |computer purchases, or choices|, may depend on it.",
        "We know that |computer purchases| may depend on it.",  # no "computer that purchases"
        "Supply grew, which |we expect will hurt prices|.",
        "Hence |the trends we have outlined limit our view|.",
        "Should |the firm be sold, or split|, prices will fall.",  # a condition
        "We like its place, |driven by new brand launches|.",
        "They turn |the tools into a holistic| offering.",
        "Because sales shift toward clients, |on-site programs, and cheaper goods, the firm's margins will fall|.",
        "This provides |the firm with a steady base|.",
        "It leads to |some partners also experience growth|.",
        "It has helped |the rail capitalize on trade|.",
        "|  , |",
    ],
)
def test_a_cut_or_unclear_span_has_no_kind(marked: str) -> None:
    assert phrase(marked) is None


def test_a_predicate_is_recognised_next_to_its_subject() -> None:
    kinds = [found and found.kind for found in (phrase("A strike |delays work|.", s) for s in ("A strike", ""))]
    assert kinds == ["finite", None]


def test_a_sentence_start_is_lowered_unless_it_is_a_name() -> None:
    assert [CASES.inside(text) for text in ("Prices rose", "The firm")] == ["prices rose", "the firm"]
    assert all(CASES.inside(text) == text for text in ("New York", "Target fell", "AT&T won"))


def test_a_phrase_with_it_does_not_stand_alone_and_a_condition_is_marked() -> None:
    found, condition = phrase("We wait because |it has many users|."), phrase("They leave if |the fees are raised|.")
    assert (found.stands_alone, condition.hypothetical) == (False, True)


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

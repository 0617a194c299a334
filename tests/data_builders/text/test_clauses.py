"""A sentence falls into clauses and phrases, and what remains of it can be read."""

from __future__ import annotations

import random
import re

import pytest

from data_builders.text.clauses import keep_spans, split_spans, with_needed

WORDS = re.compile(r"\w+")


@pytest.mark.parametrize(
    ("text", "kept", "remaining"),
    [
        # An introduction, a remark, a relative clause and a series' items can go.
        ("However, costs are rising.", ["costs"], "Costs are rising."),
        ("We think that costs will rise, in our view.", ["costs"], "Costs will rise."),
        ("While sales fell, profit grew.", ["profit"], "Profit grew."),
        ("The firm bought Enable, which owns pipes.", ["firm"], "The firm bought Enable."),
        ("The firm sold it because debt rose.", ["sold"], "The firm sold it."),
        ("They sell tea, coffee, and milk.", ["tea"], "They sell tea."),
        ("He ran home and told his mother.", ["ran"], "He ran home."),
        ("Its margin (before taxes) rose to 3%.", ["rose"], "Its margin rose to 3%."),
        # What another part needs stays with it.
        ("The firm, a leader in tea, sells milk.", ["sells"], "The firm sells milk."),
        ("He stayed because the road, which was wet, was closed.", ["wet"], None),
        ("He ran home and told his mother.", ["told"], "He ran home and told his mother."),
        ("Although he was ill, he came.", ["ill"], "Although he was ill, he came."),
        # No part of a word, a number, a date, a quotation or a noun phrase is cut off.
        ("On July 4, 2019 a large, old firm paid $1,000.", ["firm"], "On July 4, 2019 a large, old firm paid $1,000."),
        ('She said "Go, and stay, or leave." to him.', ["said"], 'She said "Go, and stay, or leave." to him.'),
        ("The size and the price matter.", ["size"], "The size and the price matter."),
        # Sentences go whole, with the line breaks of those that stay.
        ("One came. Two left.\nThree ate, but Four slept.", ["came", "slept"], "One came.\nFour slept."),
    ],
)
def test_what_remains_of_a_sentence_can_be_read(text: str, kept: list[str], remaining: str | None) -> None:
    spans = split_spans(text)
    numbers = [n for n, span in enumerate(spans) if any(word in text[span.start : span.end] for word in kept)]
    assert keep_spans(text, numbers) == (text if remaining is None else remaining)


def test_any_choice_gives_a_subsequence_of_the_words_and_all_spans_the_text_itself() -> None:
    text = (
        'However, Mr. Hall (who was late), his wife, and U.S. guests came; they ate, drank and said "Go, now!" because'
        " it rained.\n1. Boil 1,000 eggs, which are old. Wait. 2. Pour Ba(K, Na)2[Ti, O]\n"
        "Ann: Well, that is it - if you, too, agree."
    )
    spans, draw = split_spans(text), random.Random(0)
    assert WORDS.findall(" ".join(text[span.start : span.end] for span in spans)) == WORDS.findall(text)
    for _ in range(300):
        kept = {number for number in range(len(spans)) if draw.random() < 0.5}
        words, remaining = iter(WORDS.findall(text.casefold())), WORDS.findall(keep_spans(text, kept).casefold())
        assert all(word in words for word in remaining)
        assert with_needed(spans, kept) >= kept
    assert keep_spans(text, range(len(spans))) == text
    assert keep_spans(text, []) == ""

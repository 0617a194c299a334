"""Stems of words; sentences, turns of a dialogue and items of a list; excerpts of a page."""

from __future__ import annotations

import random
import re

import pytest

from data_builders.text.sentences import chunk_spans, excerpt, keep_sentences, sentence_spans, split_sentences
from data_builders.text.words import stem


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Hall met Dr. Yu. They left.", ["Mr. Hall met Dr. Yu.", "They left."]),
        ('"Stop!" he said. She ran.', ['"Stop!" he said.', "She ran."]),
        ("He moved to the U.S. Congress met.", ["He moved to the U.S. Congress met."]),
        ("It cost 3.50 euros. Cheap!", ["It cost 3.50 euros.", "Cheap!"]),
        ("J. Doe and I. Then she.", ["J. Doe and I.", "Then she."]),
        ("J. R. R. Tolkien wrote it. C. S. Lewis read it.", ["J. R. R. Tolkien wrote it.", "C. S. Lewis read it."]),
        ("See No. 5 of it. At 5 p.m. Tuesday he left.", ["See No. 5 of it.", "At 5 p.m. Tuesday he left."]),
        ("He rose in 2004.The next day he fell.", ["He rose in 2004.", "The next day he fell."]),
        ("He rose in 2004.In 2006 it was 3.5.", ["He rose in 2004.", "In 2006 it was 3.5."]),
        ("She met Ms. Hall. It rained.", ["She met Ms. Hall.", "It rained."]),
        ("Under Oblt. zur See he sailed. He died.", ["Under Oblt. zur See he sailed.", "He died."]),
        ("A 100 million-U.S.-dollar plant. It runs.", ["A 100 million-U.S.-dollar plant.", "It runs."]),
        ("  No end", ["No end"]),
        ("", []),
        # The items of a list stay whole, and a number is not a sentence.
        ("Steps so far: 1. Boil water.", ["Steps so far:", "1. Boil water."]),
        ("Tea. 1. Boil it. 2. Pour. Wait. 3. Drink.", ["Tea.", "1. Boil it.", "2. Pour. Wait.", "3. Drink."]),
        ("Step 1. Add. Stir. Step 2. Pour.", ["Step 1. Add. Stir.", "Step 2. Pour."]),
        ("Goal: Tea\n1. Boil it. Wait.\n2. Pour.", ["Goal: Tea", "1. Boil it. Wait.", "2. Pour."]),
        ("- Boil it. Wait.\n- Pour.", ["- Boil it. Wait.", "- Pour."]),
        ("He scored 3.5 and 4. Then he left.", ["He scored 3.5 and 4.", "Then he left."]),
        ("How many? 4. Ask again.", ["How many?", "4. Ask again."]),
        ("How many came? 4.", ["How many came? 4."]),
        ("1.", ["1."]),
        # Turns stay whole, paragraphs do not, and broken lines are joined.
        ("A: Hello. Nice day.\nB: Bye. Now.", ["A: Hello. Nice day.", "B: Bye. Now."]),
        ("One. Two.\n\nThree. Four.", ["One.", "Two.", "Three.", "Four."]),
        ("Energy comes from\n the sun. Always.", ["Energy comes from\n the sun.", "Always."]),
        # A quotation mark between blanks stays with its quote.
        ('He left . " A visa . " She ran . " No . "', ["He left .", '" A visa . "', "She ran .", '" No . "']),
    ],
)
def test_sentences_turns_and_items_end_where_readers_expect(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_kept_sentences_keep_the_line_breaks_between_them() -> None:
    text = "One. Two.\n\nThree. Four."
    assert keep_sentences(text, [0, 1]) == "One. Two."
    assert keep_sentences(text, [1, 3]) == "Two.\nFour."
    assert keep_sentences(text, [2, 0]) == "One.\nThree."
    assert keep_sentences(text, range(4)) == text
    assert keep_sentences("One.Two.Three.", [0, 1]) == "One. Two."


def test_the_sentences_of_random_texts_are_all_of_the_text_in_order() -> None:
    rng = random.Random(0)
    parts = ["1.", "2.", "Step 3.", "4", '"', "(", ")", "Mr. Hall", "he", "Ran", ".", "!", "\n", "A:", "3.5", "-", "…"]
    for _ in range(2_000):
        text = " ".join(rng.choices(parts, k=rng.randint(1, 14)))
        spans = sentence_spans(text)
        assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
        assert all(start < end and text[start:end] == text[start:end].strip() for start, end in spans)
        if re.search("[A-Za-z]", text) and "\n" not in text:
            assert all(re.search("[A-Za-z]", text[start:end]) for start, end in spans), text


def test_an_excerpt_is_a_piece_of_the_page_with_its_headings() -> None:
    page = "Title  a b c . Youth . d e f . g h i ."
    spans = chunk_spans(page, ["a b c .", "d e f .", "g h i ."])
    assert [page[start:end].strip() for start, end in spans] == ["Title  a b c .", "Youth . d e f .", "g h i ."]
    at = page.index("e f")
    excerpts = {5: None, 6: "Youth . d e f .", 10: "Youth . d e f . g h i .", None: page}
    assert {limit: excerpt(page, spans, (at, at + 1), limit) for limit in excerpts} == excerpts


@pytest.mark.parametrize(
    "family",
    [
        ("stop", "stops", "stopped", "stopping"),
        ("try", "tries", "tried"),
        ("house", "houses"),
        ("win", "wins", "won", "winning"),
        ("take", "takes", "took", "taken", "taking"),
        ("hope", "hoping", "hoped"),
    ],
)
def test_forms_of_a_word_have_one_stem(family: tuple[str, ...]) -> None:
    assert len({stem(word) for word in family}) == 1

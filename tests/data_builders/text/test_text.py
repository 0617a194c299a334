"""Text: stems, sentences and items, clauses that can go, mentions of an entity, phrases and questions about causes."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.clauses import keep_spans, split_spans, with_needed
from data_builders.text.mentions import (
    exchanged,
    find,
    is_part_of_a_name,
    is_replaceable,
    leaves_traces,
    needs_other_article,
    without,
)
from data_builders.text.phrases import Cases, Phrase, phrase_at
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


@pytest.mark.parametrize(
    ("entity", "text", "found"),
    [
        ("barn", "The barn, a barnyard and the Barn's door.", ["barn", "Barn"]),
        ("New York", "New  York-based, New\nYork.", ["New  York", "New\nYork"]),
        ("5", "5, 15, 1,500, 5.5, 2.5 and (5)", ["5", "5"]),
        ("1994", "In 1994, 1994-95 or 21994.", ["1994"]),
        ("$10 million", "$10 million, not $10 millions", ["$10 million"]),
        ("A.C . Pisa", "He joined A.C . Pisa .", ["A.C . Pisa"]),
    ],
)
def test_mentions_are_whole_words(entity: str, text: str, found: list[str]) -> None:
    assert find(entity, text) == found
    assert find(entity, without(entity, text)) == []


@pytest.mark.parametrize(
    ("holds", "entity", "text", "expected"),
    [
        (leaves_traces, "Barack Obama", "Obama left.", True),
        (leaves_traces, "Barack Obama", "Ann left.", False),
        (leaves_traces, "Will Smith", "He will go.", False),
        (leaves_traces, "the red barn", "The Barn burnt.", True),
        (leaves_traces, "barn", "two barns", True),
        (leaves_traces, "barn", "a bar", False),
        (leaves_traces, "Israel", "the Israeli side", True),
        (leaves_traces, "British Broadcasting Corporation", "the BBC said", True),
        (leaves_traces, "University of Oxford", "of the of", False),
        (leaves_traces, "J. Ray", "J. left", False),
        (leaves_traces, "12 km", "In 12 days", True),
        (is_part_of_a_name, "Vicar General", "the Deputy Vicar General left", True),
        (is_part_of_a_name, "London", "in London Bridge", True),
        (is_part_of_a_name, "London", "In London he left. The London he knew", False),
        (is_part_of_a_name, "London", "the London-based team", False),
        (is_part_of_a_name, "barn", "Barn Owl", False),
        (is_replaceable, "Tiger Woods", "TIGER WOODS and Tiger Woods", True),
        (is_replaceable, "Tiger Woods", "tiger woods are green", False),
        (is_replaceable, "Playground", "a playground", False),
    ],
)
def test_how_a_text_speaks_of_an_entity(
    holds: Callable[[str, str], bool], entity: str, text: str, expected: bool
) -> None:
    assert holds(entity, text) == expected


@pytest.mark.parametrize(
    ("text", "pairs", "result"),
    [
        (
            "The barn is red. Barn and garage: GARAGE, barns.",
            {"barn": "garage", "garage": "barn"},
            "The garage is red. Garage and barn: BARN, barns.",
        ),
        ("New York and York", {"York": "Leeds", "New York": "Bonn"}, "Bonn and Leeds"),
    ],
)
def test_entities_change_places_in_one_step_the_longest_first(text: str, pairs: dict[str, str], result: str) -> None:
    assert exchanged(text, pairs) == result


@pytest.mark.parametrize(
    ("other", "text", "needed"),
    [("attic", "in a barn", True), ("attic", "in the barn", False), ("garage", "in a barn", False)],
)
def test_articles_that_do_not_fit(other: str, text: str, needed: bool) -> None:
    assert needs_other_article("barn", other, text) == needed


WRITING = Cases(["The low prices, a strike and some demand; in New York and at Target they rose."])


def phrase(marked: str, subject: str = "") -> Phrase | None:
    """The phrase of the span between | and | in a passage."""
    before, span, after = marked.split("|")
    passage = before + span + after
    end = passage.index(subject) + len(subject) if subject else None
    return phrase_at(passage, len(before), len(before) + len(span), WRITING, end)


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
    assert [WRITING.inside(text) for text in ("Prices rose", "The firm")] == ["prices rose", "the firm"]
    assert all(WRITING.inside(text) == text for text in ("New York", "Target fell", "AT&T won"))


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

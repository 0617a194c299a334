"""Text: stems, sentences and items, clauses that can go, mentions of an entity, phrases and questions about causes."""

import random
import re
from pathlib import Path

import pytest
import yaml

from data_builders.text import clauses, mentions
from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.clauses import split_spans
from data_builders.text.keeping import keep_sentences, keep_spans, with_needed
from data_builders.text.mentions import exchanged, find, needs_other_article, without
from data_builders.text.phrases import Cases, Phrase, phrase_at
from data_builders.text.sentences import chunk_spans, excerpt, sentence_spans, split_sentences
from data_builders.text.words import predicate_place, stem

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "sentences"), CASES["sentences"])
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


@pytest.mark.parametrize(("text", "kept", "remaining"), CASES["remaining"])
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


@pytest.mark.parametrize("joint", [" ", ", ", " and ", " in "])
def test_the_work_on_a_table_or_list_grows_with_its_words_not_their_square(
    joint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(clauses, "predicate_place", lambda words: seen.append(len(words)) or predicate_place(words))
    spans = split_spans(joint.join(["Paris", "table", "red", "Peru"] * 500))
    assert sum(seen) < 4000 * 250
    assert sum(len(span.needs) for span in spans) <= 2 * len(spans)


@pytest.mark.parametrize(("entity", "text", "found"), CASES["mentions"])
def test_mentions_are_whole_words(entity: str, text: str, found: list[str]) -> None:
    assert find(entity, text) == found
    assert find(entity, without(entity, text)) == []


@pytest.mark.parametrize(("holds", "entity", "text", "expected"), CASES["speaks of"])
def test_how_a_text_speaks_of_an_entity(holds: str, entity: str, text: str, expected: bool) -> None:
    assert getattr(mentions, holds)(entity, text) == expected


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


@pytest.mark.parametrize(("marked", "kind", "text"), CASES["spans of a kind"])
def test_a_span_has_the_kind_that_its_words_show(marked: str, kind: str | None, text: str) -> None:
    found = phrase(marked)
    assert (found and found.kind, found.text if found else "") == (kind, text)


@pytest.mark.parametrize("marked", CASES["spans without a kind"])
def test_a_cut_or_unclear_span_has_no_kind(marked: str) -> None:
    assert phrase(marked) is None


def test_a_long_span_has_no_kind() -> None:
    assert phrase(f"|{'very ' * 50}long text| is long.") is None


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
    CASES["questions"],
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

"""Which answer is read from an output, in each format, from the well formed to the awkward."""

from __future__ import annotations

import time

import pytest

from eval.score.extract import Extraction, Setting, extract_answer

ANSWER = "The answer is:"
OPTION = "The correct option is:"
OPTIONS = "The correct options are:"
MEALS = ["ate breakfast", "washed up", "went to work"]


def scq(output: str, options: list[str] = MEALS) -> tuple[str, ...] | None:
    found = extract_answer(output, fmt="scq", options=options, marker=OPTION)
    return found.answers if found.parsed else None


def mcq(output: str, options: list[str] = MEALS) -> tuple[str, ...] | None:
    found = extract_answer(output, fmt="mcq", options=options, marker=OPTIONS)
    return found.answers if found.parsed else None


def nli(output: str) -> str | None:
    found = extract_answer(output, fmt="nli", options=[], marker=ANSWER)
    assert len(found.answers) <= 1
    return found.answers[0] if found.parsed else None


def qa(output: str) -> Extraction:
    return extract_answer(output, fmt="qa", options=[], marker=ANSWER)


@pytest.mark.parametrize(
    "output",
    [
        "The answer is: the old mill.",
        "The answer is: the old mill",
        "Think first.\nthe ANSWER  is:the old mill\nQuestion: and then?",
        "The answer is:\nthe old mill",
        "the old mill",
        "The answer is the old mill.",
        "The answer is: the old mill\n\nThe answer is: something invented",
    ],
)
def test_qa_reads_the_line_behind_the_response_form(output: str) -> None:
    mode = "strict" if ":" in output else "lenient"
    assert qa(output) == Extraction(("the old mill",), mode)


def test_qa_with_nothing_behind_the_response_form_is_not_parsed() -> None:
    assert qa("The answer is: ") == Extraction(("The answer is:",), "none")


@pytest.mark.parametrize("output", ["", "  \n"])
@pytest.mark.parametrize("fmt", ["nli", "scq", "mcq", "qa"])
def test_an_empty_output_gives_no_answer(output: str, fmt: str) -> None:
    assert extract_answer(output, fmt=fmt, options=MEALS, marker=ANSWER) == Extraction((), "none")


@pytest.mark.parametrize(
    ("output", "label"),
    [
        ("The answer is: positive", "positive"),
        ("The answer is: Negative.", "negative"),
        ("**The answer is:** positive", "positive"),
        ("The answer is: positive, since it is not negative", "positive"),
        ("The answer is: positive\n\nThe answer is: negative", "positive"),
        ("The answer is: unclear.\nThe answer is: negative", "negative"),
        ("I think it is negative", "negative"),
        ("So the answer is positive", "positive"),
        ("The answer is not obvious. It is negative", "negative"),
        ("POSITIVE", "positive"),
    ],
)
def test_nli_reads_the_label(output: str, label: str) -> None:
    assert nli(output) == label


@pytest.mark.parametrize(
    "output",
    [
        "The answer is: positive or negative",
        "The answer is: positive/negative",
        "It may be positive, it may be negative.",
        "The answer is: not positive",
        "It isn't negative",
        "The positively charged answer",
        "The answer is: maybe",
        "positive? The answer is: I cannot tell",
    ],
)
def test_nli_never_guesses(output: str) -> None:
    assert nli(output) is None


def test_an_answer_that_was_not_recognised_is_kept_as_it_is() -> None:
    found = extract_answer(" maybe \n", fmt="nli", options=[], marker=ANSWER)
    assert found == Extraction(("maybe",), "none")


@pytest.mark.parametrize(
    "output",
    [
        "The correct option is: (B) washed up",
        "The correct option is: (B)",
        "The correct option is: B",
        "The correct option is: b",
        "The correct option is: B. washed up",
        "The correct option is: B washed up",
        "The correct option is: **(B) Washed up.**",
        "The correct option is: (B) washed up, as the text says",
        "The correct option is: washed up",
        "The correct option is: (B) cleaned the dishes",
        "The correct option is:\n(B) washed up",
        "The correct option is: (B) washed up\n\nOptions:\n(A) ate\n(C) went",
        "The correct option is B",
        "Option B",
        "(B)",
        "B.",
        "b",
        "Washed up!",
        "They must have washed up by then.",
        "I choose (B) because of the dishes.",
        "The correct option is: (B). The correct option is: (C).",
    ],
)
def test_scq_reads_letter_or_text(output: str) -> None:
    assert scq(output) == ("washed up",)


@pytest.mark.parametrize(
    "output",
    [
        "The correct option is: (A) or (B)",
        "The correct option is: A/B",
        "The correct option is: (A) washed up",  # the letter says one thing and the text another
        "The correct option is: (D) slept",  # there is no D
        "The correct option is: ate breakfast or washed up",
        "(A) ate breakfast\n(B) washed up\n(C) went to work",
        "(A) is tempting.\nThe correct option is: none of these",
        "Vitamin C. is healthy",
    ],
)
def test_scq_never_guesses(output: str) -> None:
    assert scq(output) is None


def test_scq_takes_the_longer_of_two_nested_options() -> None:
    options = ["left", "left home", "stayed"]
    assert scq("The correct option is: she left home early", options) == ("left home",)
    assert scq("The correct option is: (A) left", options) == ("left",)


def test_scq_tells_options_apart_that_differ_in_an_article_only() -> None:
    options = ["saw the dog", "saw a dog"]
    assert scq("The correct option is: saw a dog", options) == ("saw a dog",)
    assert scq("The correct option is: saw dog", options) is None


def test_scq_reads_an_option_text_that_holds_letters_and_separators() -> None:
    options = ["see (B); then (C)", "rest", "run"]
    assert scq("The correct option is: (A) see (B); then (C)", options) == ("see (B); then (C)",)
    assert scq("The correct option is: see (B); then (C)", options) == ("see (B); then (C)",)


@pytest.mark.parametrize(
    "output",
    [
        "The correct options are: (A) ate breakfast; (C) went to work",
        "The correct options are: (A), (C)",
        "The correct options are: A and C",
        "The correct options are: A, C",
        "The correct options are: A. ate breakfast; C. went to work",
        "The correct options are: ate breakfast; went to work",
        "The correct options are:\n(A) ate breakfast\n(C) went to work\n\n(B) washed up",
        "The correct options are: (A) ate breakfast\n(C) went to work",
        "(A) and (C) are both right",
    ],
)
def test_mcq_reads_all_options(output: str) -> None:
    assert mcq(output) == ("ate breakfast", "went to work")


@pytest.mark.parametrize(
    "stated",
    [
        "(C) went to work; (A) ate breakfast.",
        "C, A",
        "(C), (A), (C)",
        "went to work; ate breakfast; went to work",
        "\n(C) went to work\n(A) ate breakfast",
    ],
)
def test_mcq_keeps_the_order_in_which_the_model_named_the_options(stated: str) -> None:
    assert mcq(f"The correct options are: {stated}") == ("went to work", "ate breakfast")


def test_mcq_reads_one_option() -> None:
    assert mcq("The correct options are: (B) washed up") == ("washed up",)


def test_mcq_does_not_split_an_option_at_its_own_semicolon_or_letter() -> None:
    options = ["came; saw", "saw", "won (A)", "lost"]
    assert mcq("The correct options are: (A) came; saw; (C) won (A)", options) == ("came; saw", "won (A)")
    options = ["came; saw", "saw", "won", "lost"]
    assert mcq("The correct options are: came; saw; won", options) == ("came; saw", "won")


@pytest.mark.parametrize("output", ["The correct options are: none", "The correct options are: (A) washed up; (C)"])
def test_mcq_with_nothing_recognisable_is_not_parsed(output: str) -> None:
    assert mcq(output) is None


@pytest.mark.parametrize("several", [1, 2, 3])
def test_every_training_target_reads_back_as_its_answers(several: int) -> None:
    options = ["A cat; a dog", "The", "1.5 km (B)", "Why?"]
    chosen = options[-several:]
    target = "; ".join(f"({'ABCD'[options.index(option)]}) {option}" for option in chosen)
    assert mcq(f"The correct options are: {target}", options) == tuple(chosen)
    assert scq(f"The correct option is: {target}", options) == (tuple(chosen) if several == 1 else None)


def test_an_option_is_placed_where_it_stands_and_not_where_a_longer_one_holds_it() -> None:
    options = ["left", "left home", "stayed"]
    assert mcq("The correct options are: they left home, stayed, then left", options) == (
        "left home",
        "stayed",
        "left",
    )


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ("The answer is: positive", Extraction(("positive",), "strict")),
        ("The answer is positive", Extraction(("positive",), "lenient")),
        ("Answer: positive", Extraction(("positive",), "lenient")),
        ("Final answer - it is **positive**", Extraction(("positive",), "lenient")),
        ("positive", Extraction(("positive",), "lenient")),
        ("Who knows?", Extraction(("Who knows?",), "none")),
        ("It is positive. The answer is: unknown", Extraction(("It is positive. The answer is: unknown",), "none")),
    ],
)
def test_an_answer_behind_the_response_form_is_strict_and_any_other_lenient(output: str, found: Extraction) -> None:
    assert extract_answer(output, fmt="nli", options=[], marker=ANSWER) == found


def test_another_way_to_state_the_answer_is_read_before_the_text_around_it() -> None:
    assert qa("Rain fell.\nFinal answer: **the old mill**\nQuestion: and then?") == Extraction(
        ("the old mill",), "lenient"
    )
    assert scq("Breakfast was eaten. The best option is (B).") == ("washed up",)
    assert scq("Options:\n(A) ate breakfast\n(B) washed up") is None, "a repeated list is no answer"


REASONED = "At first sight the answer is: negative.\nBut it rained.\nThe answer is: positive"


def test_a_chain_of_thought_is_read_at_its_last_statement_and_a_direct_answer_at_its_first() -> None:
    def label(output: str, setting: Setting) -> Extraction:
        return extract_answer(output, fmt="nli", options=[], marker=ANSWER, setting=setting)

    assert label(REASONED, "cot") == Extraction(("positive",), "strict")
    assert label(REASONED, "zero_shot") == label(REASONED, "few_shot") == Extraction(("negative",), "strict")
    cut = REASONED + ".\nSo the answer is:"  # the longest output ended here
    assert label(cut, "cot") == Extraction(("positive",), "strict")
    assert label("It may be negative.\nNo: positive", "cot") == Extraction(("positive",), "lenient")
    assert label("It may be negative.\nNo: positive", "zero_shot").mode == "none"


def test_a_chain_of_thought_in_free_text_ends_with_its_answer() -> None:
    found = extract_answer("The mill is old.\n\nThe old mill.\n", fmt="qa", options=[], marker=ANSWER, setting="cot")
    assert found == Extraction(("The old mill",), "lenient")
    listed = "(B) is wrong.\nSo these are left:\n(C) went to work\n(A) ate breakfast"
    found = extract_answer(listed, fmt="mcq", options=MEALS, marker=OPTIONS, setting="cot")
    assert found == Extraction(("went to work", "ate breakfast"), "lenient")


def test_what_a_reasoning_model_thinks_is_no_answer() -> None:
    assert nli("<think>The answer is: negative?</think>The answer is: positive") == "positive"
    assert nli("The answer is: negative, or</think>The answer is: positive") == "positive"  # the prompt opened it
    assert nli("<think>The answer is: negative? Or") is None


def test_where_no_response_form_is_asked_for_the_first_line_is_the_answer() -> None:
    def read(output: str, setting: Setting) -> Extraction:
        return extract_answer(output, fmt="nli", options=[], marker="", setting=setting)

    assert read("positive\nHypothesis: another. negative", "few_shot") == Extraction(("positive",), "strict")
    assert read("It could be negative.\npositive", "cot") == Extraction(("positive",), "strict")
    assert read("Well.\nIt is positive", "zero_shot") == Extraction(("positive",), "lenient")


@pytest.mark.timeout(5)
@pytest.mark.parametrize("piece", ["A ", "(A) ", "positive ", ". ", "\n", "The answer is: ", "and A", "washed "])
@pytest.mark.parametrize("fmt", ["nli", "scq", "mcq", "qa"])
def test_an_endlessly_repeated_output_is_read_quickly(fmt: str, piece: str) -> None:
    extract_answer(piece * 2_000, fmt=fmt, options=MEALS, marker=ANSWER)


@pytest.mark.parametrize("setting", ["zero_shot", "cot"])
@pytest.mark.parametrize("fmt", ["nli", "scq", "mcq", "qa"])
@pytest.mark.parametrize("said", ["answer is ", "answers:", "The correct option is: ", "Option A ", "A. x\n"])
def test_a_model_that_says_the_same_without_end_is_read_soon(said: str, fmt: str, setting: Setting) -> None:
    started = time.process_time()
    extract_answer(said * (100_000 // len(said)), fmt=fmt, options=MEALS, marker=OPTION, setting=setting)
    assert time.process_time() - started < 0.5

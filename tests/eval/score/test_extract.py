"""Which answer is read from an output, in each format, from the well formed to the awkward."""

from __future__ import annotations

from typing import Any

import pytest

from eval.score.extract import Extraction, Setting, extract_answer

ANSWER = "The answer is:"
OPTION = "The correct option is:"
OPTIONS = "The correct options are:"
MEALS = ["ate breakfast", "washed up", "went to work"]


def read(fmt: str, output: str, options: list[str] = MEALS, **more: Any) -> tuple[str, ...] | None:
    """Return the answers, or None if nothing was recognised."""
    marker = {"scq": OPTION, "mcq": OPTIONS}.get(fmt, ANSWER)
    found = extract_answer(output, fmt=fmt, options=options, marker=marker, **more)
    return found.answers if found.parsed else None


def cases(fmt: str, expected: tuple[str, ...] | None, outputs: list[str]) -> list[Any]:
    return [pytest.param(fmt, output, expected, id=f"{fmt}-{output[:60]}") for output in outputs]


@pytest.mark.parametrize(
    ("fmt", "output", "expected"),
    [
        *cases("qa", ("the old mill",), [
            "The answer is: the old mill.",
            "The answer is: the old mill",
            "Think first.\nthe ANSWER  is:the old mill\nQuestion: and then?",
            "The answer is:\nthe old mill",
            "the old mill",
            "The answer is the old mill.",
            "The answer is: the old mill\n\nThe answer is: something invented",
            "Rain fell.\nFinal answer: **the old mill**\nQuestion: and then?",
        ]),
        *cases("nli", ("positive",), [
            "The answer is: positive",
            "**The answer is:** positive",
            "The answer is: positive, since it is not negative",
            "The answer is: positive\n\nThe answer is: negative",
            "So the answer is positive",
            "POSITIVE",
            "<think>The answer is: negative?</think>The answer is: positive",
            "The answer is: negative, or</think>The answer is: positive",  # the prompt opened it
        ]),
        *cases("nli", ("negative",), [
            "The answer is: Negative.",
            "The answer is: unclear.\nThe answer is: negative",
            "I think it is negative",
            "The answer is not obvious. It is negative",
        ]),
        *cases("nli", None, [
            "The answer is: positive or negative",
            "The answer is: positive/negative",
            "It may be positive, it may be negative.",
            "The answer is: not positive",
            "It isn't negative",
            "The positively charged answer",
            "The answer is: maybe",
            "positive? The answer is: I cannot tell",
            "<think>The answer is: negative? Or",
        ]),
        *cases("scq", ("washed up",), [
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
            "Breakfast was eaten. The best option is (B).",
        ]),
        *cases("scq", None, [
            "The correct option is: (A) or (B)",
            "The correct option is: A/B",
            "The correct option is: (A) washed up",  # letter and text disagree
            "The correct option is: (D) slept",  # there is no D
            "The correct option is: ate breakfast or washed up",
            "(A) ate breakfast\n(B) washed up\n(C) went to work",
            "(A) is tempting.\nThe correct option is: none of these",
            "Vitamin C. is healthy",
            "Options:\n(A) ate breakfast\n(B) washed up",  # a repeated list is no answer
        ]),
        *cases("mcq", ("ate breakfast", "went to work"), [
            "The correct options are: (A) ate breakfast; (C) went to work",
            "The correct options are: (A), (C)",
            "The correct options are: A and C",
            "The correct options are: A, C",
            "The correct options are: A. ate breakfast; C. went to work",
            "The correct options are: ate breakfast; went to work",
            "The correct options are:\n(A) ate breakfast\n(C) went to work\n\n(B) washed up",
            "The correct options are: (A) ate breakfast\n(C) went to work",
            "(A) and (C) are both right",
        ]),
        *cases("mcq", ("went to work", "ate breakfast"), [
            "The correct options are: (C) went to work; (A) ate breakfast.",
            "The correct options are: C, A",
            "The correct options are: (C), (A), (C)",
            "The correct options are: went to work; ate breakfast; went to work",
            "The correct options are: \n(C) went to work\n(A) ate breakfast",
        ]),
        *cases("mcq", ("washed up",), ["The correct options are: (B) washed up"]),
        *cases("mcq", None, ["The correct options are: none", "The correct options are: (A) washed up; (C)"]),
    ],
)  # fmt: skip
def test_an_answer_is_read_or_left(fmt: str, output: str, expected: tuple[str, ...] | None) -> None:
    assert read(fmt, output) == expected


SIGNED = ["-5", "5", "10"]
NAMES = ["C", "C#", "C++", "Go"]
DOGS = ["the dog", "a dog", "cat"]


@pytest.mark.parametrize(
    ("fmt", "options", "stated", "expected"),
    [
        ("scq", ["left", "left home", "stayed"], "she left home early", ("left home",)),
        ("scq", ["left", "left home", "stayed"], "(A) left", ("left",)),
        ("scq", ["saw the dog", "saw a dog"], "saw a dog", ("saw a dog",)),
        ("scq", ["saw the dog", "saw a dog"], "saw dog", None),
        ("scq", ["see (B); then (C)", "rest", "run"], "(A) see (B); then (C)", ("see (B); then (C)",)),
        ("scq", ["see (B); then (C)", "rest", "run"], "see (B); then (C)", ("see (B); then (C)",)),
        ("mcq", ["came; saw", "saw", "won (A)", "lost"], "(A) came; saw; (C) won (A)", ("came; saw", "won (A)")),
        ("mcq", ["came; saw", "saw", "won", "lost"], "came; saw; won", ("came; saw", "won")),
        ("mcq", ["left", "left home", "stayed"], "left home, stayed, then left", ("left home", "stayed", "left")),
        ("scq", SIGNED, "-5", ("-5",)),
        ("scq", SIGNED, "5.", ("5",)),
        ("scq", SIGNED, "(A)", ("-5",)),
        ("scq", SIGNED, "(A) -5", ("-5",)),
        ("scq", SIGNED, "A -5", ("-5",)),
        ("scq", SIGNED, "it is -5 degrees", ("-5",)),
        ("scq", SIGNED, "it is 5 degrees", ("5",)),
        ("scq", SIGNED, "\u200b\uff15", ("5",)),  # an invisible character, and a full-width digit
        ("scq", SIGNED, "(A) 5", None),  # the letter of another option
        ("scq", SIGNED, "\N{MINUS SIGN}5", ("-5",)),
        ("scq", SIGNED, "B -5", None),
        ("scq", ["7", "5"], "A 5", None),  # before a number, no article
        ("scq", ["7", "5"], "A 7", ("7",)),
        ("scq", ["a cat", "the dog"], "A dog", ("the dog",)),
        ("scq", ["B 5", "5"], "B 5", ("B 5",)),
        ("scq", ["5", "7"], "B " * 9999, ("7",)),
        ("scq", SIGNED, "+5", None),
        ("scq", SIGNED, "it is +5", None),
        ("scq", SIGNED, "-5 or 5", None),
        ("scq", ["5", ".5"], "(A) .5", None),
        ("scq", ["-5", "ten"], "5", ("-5",)),  # one option is left
        ("scq", ["-10%", "+10%"], "-10 %", ("-10%",)),
        ("scq", ["-10%", "+10%"], "10", None),
        ("scq", ["-10%", "+10%"], "(A) +10%", None),
        ("scq", NAMES, "C", ("C",)),
        ("scq", NAMES, "(B) C#", ("C#",)),
        ("scq", NAMES, "c#", ("C#",)),
        ("scq", NAMES, "She writes C++.", ("C++",)),
        ("scq", ["C#", "C++", "Go"], "C", ("Go",)),  # a letter
        ("scq", ["Go", "Java", "Rust"], "C#", None),  # no letter
        ("scq", DOGS, "The dog.", ("the dog",)),
        ("scq", DOGS, "I saw a dog.", ("a dog",)),
        ("scq", DOGS, "dog", None),
        ("scq", ["10:30", "1030"], "at 1030", ("1030",)),
        ("scq", ["US", "us"], "us", ("us",)),
        ("scq", ["US", "us"], "(A) us", ("US",)),
        ("scq", ["US", "us"], "for the US", ("US",)),
        ("scq", ["He left.", "He left"], "He left", ("He left",)),
        ("scq", ["caf\u00e9 A", "tea"], "cafe\u0301 a", ("caf\u00e9 A",)),
        ("mcq", NAMES, "C#; C++", ("C#", "C++")),
        ("mcq", NAMES, "(C) C++; (B) C#", ("C++", "C#")),
        ("mcq", NAMES, "they are C++, C and Go", ("C++", "C", "Go")),
        ("mcq", NAMES, "(A) C#; (D) Go", None),
        ("mcq", NAMES, "c%; Go", None),
    ],
)
def test_options_that_hold_or_resemble_one_another_stay_apart(
    fmt: str, options: list[str], stated: str, expected: tuple[str, ...] | None
) -> None:
    assert read(fmt, f"{OPTION if fmt == 'scq' else OPTIONS} {stated}", options) == expected


@pytest.mark.parametrize(
    ("fmt", "output", "ambiguous"),
    [
        ("scq", f"{OPTION} +5", True),
        ("scq", f"{OPTION} (A) or (B)", True),
        ("scq", f"{OPTION} (A) 5", True),
        ("scq", f"{OPTION} none of these", False),
        ("scq", "", False),
        ("mcq", f"{OPTIONS} +5; 10", True),
        ("qa", "-5 or 5", False),
    ],
)
def test_an_output_that_could_mean_several_options_is_ambiguous(fmt: str, output: str, ambiguous: bool) -> None:
    marker = {"scq": OPTION, "mcq": OPTIONS}.get(fmt, ANSWER)
    options = [] if fmt == "qa" else SIGNED
    assert extract_answer(output, fmt=fmt, options=options, marker=marker).ambiguous == ambiguous


@pytest.mark.parametrize("several", [1, 2, 3])
def test_every_training_target_reads_back_as_its_answers(several: int) -> None:
    options = ["A cat; a dog", "The", "1.5 km (B)", "Why?", "15 km (B)", "-15 km (B)"]
    chosen = options[-several:]
    target = "; ".join(f"({'ABCDEF'[options.index(option)]}) {option}" for option in chosen)
    assert read("mcq", f"{OPTIONS} {target}", options) == tuple(chosen)
    assert read("scq", f"{OPTION} {target}", options) == (tuple(chosen) if several == 1 else None)


@pytest.mark.parametrize(
    ("fmt", "output", "found"),
    [
        ("nli", "The answer is: positive", Extraction(("positive",), "strict")),
        ("nli", "The answer is positive", Extraction(("positive",), "lenient")),
        ("nli", "Answer: positive", Extraction(("positive",), "lenient")),
        ("nli", "Final answer - it is **positive**", Extraction(("positive",), "lenient")),
        ("nli", "positive", Extraction(("positive",), "lenient")),
        ("nli", " Who knows? \n", Extraction(("Who knows?",), "none")),
        ("nli", "positive. The answer is: unknown", Extraction(("positive. The answer is: unknown",), "none")),
        ("qa", "The answer is: ", Extraction(("The answer is:",), "none")),
        *((fmt, "  \n", Extraction((), "none")) for fmt in ("nli", "scq", "mcq", "qa")),
    ],
)
def test_an_answer_after_the_response_form_is_strict(fmt: str, output: str, found: Extraction) -> None:
    assert extract_answer(output, fmt=fmt, options=[], marker=ANSWER) == found


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


def test_where_no_response_form_is_asked_for_the_first_line_is_the_answer() -> None:
    def read(output: str, setting: Setting) -> Extraction:
        return extract_answer(output, fmt="nli", options=[], marker="", setting=setting)

    assert read("positive\nHypothesis: another. negative", "few_shot") == Extraction(("positive",), "strict")
    assert read("It could be negative.\npositive", "cot") == Extraction(("positive",), "strict")
    assert read("Well.\nIt is positive", "zero_shot") == Extraction(("positive",), "lenient")

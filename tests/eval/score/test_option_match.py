"""Which options a statement names, read directly; `test_extract` reads whole outputs."""

from __future__ import annotations

import pytest

from eval.score.option_match import find_options, starts_with_label

MEALS = ["ate breakfast", "washed up", "went to work"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("(C) went to work; (A) ate breakfast", ("went to work", "ate breakfast")),
        ("C and A", ("went to work", "ate breakfast")),
        ("They washed up and went to work.", ("washed up", "went to work")),
        ("(A) washed up", ()),  # the letter says one thing and the text another
        ("(D)", ()),
        ("they slept", ()),
    ],
)
def test_options_are_named_by_letter_or_words_in_the_order_of_the_text(text: str, named: tuple[str, ...]) -> None:
    assert find_options(text, MEALS, several=True) == named


def test_where_one_may_be_chosen_a_text_that_names_two_names_none() -> None:
    assert find_options("(A) and (B)", MEALS, several=False) == ()
    assert find_options("(B)", MEALS, several=False) == ("washed up",)


@pytest.mark.parametrize(("line", "starts"), [("(A) ate", True), ("- (B) washed", True), ("I say (A)", False)])
def test_an_entry_of_a_list_begins_with_its_label(line: str, starts: bool) -> None:
    assert starts_with_label(line) is starts

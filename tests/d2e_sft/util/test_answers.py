"""SQuAD's exact match and F1, by hand."""

from __future__ import annotations

from d2e_sft.util.answers import exact_match, normalise, token_f1


def test_articles_case_and_punctuation_do_not_count() -> None:
    assert normalise(" The  Red, barn! ") == "red barn"
    assert exact_match("the red barn.", ["A red barn", "x"]) == 1.0
    assert exact_match("barn", ["red barn"]) == 0.0


def test_f1_is_of_the_best_gold_answer() -> None:
    assert token_f1("in red barn", ["red barn", "x"]) == 0.8  # P 2/3, R 1
    assert token_f1("the", [""]) == 1.0
    assert token_f1("barn", []) == 0.0

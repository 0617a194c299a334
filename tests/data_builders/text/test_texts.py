"""Small functions on texts."""

from __future__ import annotations

from data_builders.sources.procedures import goal_and_steps
from data_builders.sources.rows import contains_any, fingerprint, has_if


def test_copies_that_differ_in_spacing_or_punctuation_have_one_fingerprint() -> None:
    assert fingerprint("I met Tom .\nHe left!") == fingerprint("i met tom. He  left") == "imettomheleft"


def test_an_if_is_the_letters_or_the_word() -> None:
    assert [has_if(text, "substring") for text in ("a different one", "If so?")] == [True, False]
    assert [has_if(text, "word") for text in ("a different one", "If so?")] == [False, True]


def test_no_context_has_an_empty_answer() -> None:
    assert contains_any("Ann ran.", ["", "ANN"])
    assert not contains_any("Ann ran.", [""])


def test_steps_are_numbered() -> None:
    assert goal_and_steps("Tea.", ["Boil.", "Pour."]) == ["Goal: Tea.", "1. Boil.", "2. Pour."]

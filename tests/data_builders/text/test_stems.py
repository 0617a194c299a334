"""Stems of words."""

from __future__ import annotations

import pytest

from data_builders.text.words import stem


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

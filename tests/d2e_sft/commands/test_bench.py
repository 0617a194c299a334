"""`d2e bench`: what is refused before anything is loaded."""

from __future__ import annotations

import pytest

from tests.command import refusal_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--contexts", "12,x"], "got '12,x'; expected lengths in tokens, for example 150,350,700"),
        (["decode", "--batches", "0"], "got '0'; expected lengths in tokens"),
        (["decode", "--prompts", "160"], "--prompts 160: too short; expected more than 160 tokens"),
    ],
)
def test_a_wrong_number_is_explained(words: list[str], said: str) -> None:
    assert said in refusal_of("bench", *words).replace("\n", " ")

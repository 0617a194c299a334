from __future__ import annotations

import pytest

from d2e_sft.util.answers import asked_for


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("Where is the key now?", "where"),
        ("To whom did she write?", "who"),
        ("What type of planes were flown?", "planes"),
        ("The ship was owned by what country between 1982 and 1985?", "country"),
        ("If the man who led had left, which town would he have chosen?", "town"),
        ("How many people were hurt?", "how many people"),
        ("How long may a ward keep the pump?", "how long"),
        ("Why did it burn?", "_ did it burn?"),
        ("What caused the Great Fire?", "_ caused the _ _"),
        ("What does Box 12 contain?", "_ does _ _ contain?"),
    ],
)
def test_the_kind_that_a_question_asks_for(question: str, asked: str) -> None:
    assert asked_for(question) == asked

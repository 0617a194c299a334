"""Where sentences end."""

from __future__ import annotations

import pytest

from data_builders.text.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Hall met Dr. Yu. They left.", ["Mr. Hall met Dr. Yu.", "They left."]),
        ('"Stop!" he said. She ran.', ['"Stop!" he said.', "She ran."]),
        ("He moved to the U.S. Congress met.", ["He moved to the U.S. Congress met."]),
        ("It cost 3.50 euros. Cheap!", ["It cost 3.50 euros.", "Cheap!"]),
        ("J. Doe and I. Then she.", ["J. Doe and I.", "Then she."]),
        ("  No end", ["No end"]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences

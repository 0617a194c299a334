"""What pages and CSV leave in texts is decoded; what a text means by the same characters stays."""

from __future__ import annotations

import pytest

from data_builders.raw.characters import CONTROLS, ENTITIES, MISREAD, QUOTES, decode_all_texts, decode_characters

MEANT = (
    "R&D; AT&T and M&A&notable",
    "&amp without its end",
    'the film "" and the series ""',  # titles that were lost
    '"Introducing "Angel"", an overview',  # a quotation in a quotation
    '""Gunsmoke" is the best," she wrote',
    "''The One,'' a plan",
    "Kanji: 言葉の吹き声, 茅 and 茅台",
    "a line\nand another \u00a0 \u200d",
)


@pytest.mark.parametrize(
    ("raw", "meant", "what"),
    [
        ("the Earth&#x27;s air", "the Earth's air", ENTITIES),
        ("Ash &amp; Co&#46; &lt;b&gt;", "Ash & Co. <b>", ENTITIES),
        ("&amp;quot;Go&amp;quot;", '"Go"', ENTITIES),
        ('a ""so-called"" expert', 'a "so-called" expert', QUOTES),
        ('an """"all or none,"""" rule', 'an "all or none," rule', QUOTES),
        ("a ''''dirty bomb''''", "a 'dirty bomb'", QUOTES),
        ("\x0fStars\tshine", "Stars shine", CONTROLS),
        ("one\r\ntwo", "one\ntwo", CONTROLS),
        ("its life鈥攔anging widely", "its life—ranging widely", MISREAD),
        ("two-fold 鈥 faster, an expansion鈥200 units", "two-fold — faster, an expansion—200 units", MISREAD),
        ("Nestl茅 has 5 m虏", "Nestlé has 5 m²", MISREAD),
        # What a text means by the same characters stays.
        *((text, text, "") for text in MEANT),
    ],
)
def test_what_was_encoded_is_decoded_and_the_rest_stays(raw: str, meant: str, what: str) -> None:
    assert decode_characters(raw) == (meant, {what} - {""})


def test_all_texts_of_a_value_are_decoded_and_the_rest_stays() -> None:
    value = {"a": ["x &gt; y", ['""z"" or']], "b": None, "&amp;": 3}
    assert decode_all_texts(value) == ({"a": ["x > y", ['"z" or']], "b": None, "&amp;": 3}, {ENTITIES, QUOTES})

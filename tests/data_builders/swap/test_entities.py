"""Entities get a type by question, words and lists; others of a type keep titles, initials and type words."""

from __future__ import annotations

import random
import re

import pytest

from data_builders.swap.entities import others_of_type, type_of


@pytest.mark.parametrize(
    ("answer", "asked", "context", "kind"),
    [
        ("Peru", "who", "Peru won.", "countries"),
        ("Welsh", "language", "She spoke Welsh.", "languages"),
        ("Welsh", "club", "She is Welsh.", "natives"),
        ("Kiruna", "city", "In Kiruna.", "cities"),
        ("Derby Works", "company", "Derby Works built it.", "Works"),
        ("Håkan Hedström", "director", "Led by Håkan Hedström.", "persons"),
        ("Shaun Micheel", "who", "Ahead of Shaun Micheel.", "persons"),
        ("Ajax", "who", "Ajax won.", ""),
        ("Real Madrid", "who", "Real Madrid won.", ""),
        ("Green Bay", "who", "He won in Green Bay.", "Bay"),
        ("red barn", "who", "The red barn.", ""),
    ],
)
def test_the_type_of_an_entity(answer: str, asked: str, context: str, kind: str) -> None:
    assert type_of(answer, asked, context) == kind


@pytest.mark.parametrize(
    ("answer", "asked", "context", "form"),
    [
        ("Ann B. Lee", "who", "Ann B. Lee came.", r"[A-Z]\w+ B\. [A-Z]\w+"),
        ("Sir Ian Lee", "who", "Sir Ian Lee came.", r"Sir [A-Z]\w+ [A-Z]\w+"),
        ("Richard II", "king", "Richard II came.", r"[A-Z]\w+ II"),
        ("Darlington Works", "company", "Darlington Works made it.", r"[A-Z]\w+ Works"),
        ("University of Oxford", "where", "At the University of Oxford.", None),
        ("Bank of Norway", "bank", "The Bank of Norway.", r"Bank of [A-Z]\w+"),
        ("United States Army", "organization", "The United States Army.", None),
    ],
)
def test_titles_initials_and_types_stay(answer: str, asked: str, context: str, form: str | None) -> None:
    found = others_of_type(answer, asked, context, random.Random(0))
    assert bool(found) == (form is not None)
    for text in found:
        assert re.fullmatch(str(form), text), text

"""Other answers come from the row's choices, from lists by type, or from other rows; parts of a name change along."""

from __future__ import annotations

import random
import re

import pytest
from pydantic import ValidationError

from d2e_sft.data.sample import EventSample
from data_builders.swap.entities import others_of_type, type_of
from data_builders.swap.numbers import number_forms, other_numbers
from data_builders.swap.options import Pool, SwapOptions
from data_builders.swap.revise import Refusal, revised
from data_builders.swap.swap import swap_samples


def _row(context: str, question: str, answer: str, *choices: str, fmt: str = "qa") -> EventSample:
    return EventSample(
        id="hand",
        dataset="hand",
        split="train",
        relation="factual",
        format=fmt,
        context=context,
        question=question,
        answers=[answer],
        options=[answer, *choices] if fmt == "scq" else [],
        meta={"choices": list(choices)} if choices and fmt == "qa" else {},
    )


@pytest.mark.parametrize("fmt", ["qa", "scq"])
@pytest.mark.parametrize(
    ("context", "answer", "choices", "changed", "other"),
    [
        # A list of options writes everything with a capital; the context does not.
        ("It guards against disease.", "disease", ["Injury"], "It guards against injury.", "injury"),
        ("Inertia, the law of inertia.", "Inertia", ["Friction"], "Friction, the law of friction.", "friction"),
        ("The House of Lords met.", "The House", ["At Noon", "The Court"], "The Court of Lords met.", "The Court"),
        # A choice of another form is left out: a clause, another number, another unit.
        ("He rushed home.", "rushed home", ["because it rained", "walked back"], "He walked back.", "walked back"),
        ("It took 28 days.", "28 days", ["Five", "30 hours", "20 days"], "It took 20 days.", "20 days"),
    ],
)
def test_a_choice_of_the_same_form_is_taken_and_written_as_the_context_writes(
    context: str, answer: str, choices: list[str], changed: str, other: str, fmt: str
) -> None:
    row = _row(context, "What was it?", answer, *choices, fmt=fmt)
    (new,), swaps = swap_samples([row], 1.0, random.Random(0), SwapOptions())
    assert new.context == changed
    assert new.answers[0].casefold() == other.casefold()
    assert new.answers[0] in (new.options or new.answers)
    assert new.meta["swapped"]["pool"] == "options"
    assert swaps.describe()["pools"] == {"options": 1}


@pytest.mark.parametrize(
    ("context", "question", "answer", "other", "changed"),
    [
        (
            "Barack Obama won. Obama spoke; MICHELLE OBAMA and Michelle Obama left.",
            "Who won?",
            "Barack Obama",
            "John Smith",
            "John Smith won. Smith spoke; MICHELLE SMITH and Michelle Smith left.",
        ),
        ("Jin Bank grew. The bank is old.", "Which?", "Jin Bank", "Tang Bank", "Tang Bank grew. The bank is old."),
        ("He saw Lima and the Lima Times.", "Which town?", "Lima", "Oslo", "He saw Oslo and the Oslo Times."),
        ("King Harold fell. Harold died.", "Who?", "Harold", "Edmund", "King Edmund fell. Edmund died."),
        ("Peru won. The Peruvian side sang.", "Who won?", "Peru", "Chile", "Chile won. The Chilean side sang."),
        ("He left on May 4, 1990, in May.", "When?", "May 4, 1990", "May 9, 1990", "He left on May 9, 1990, in May."),
    ],
)  # fmt: skip
def test_parts_and_forms_of_a_name_change_with_it(
    context: str, question: str, answer: str, other: str, changed: str
) -> None:
    new = revised(_row(context, question, answer), other, Pool.LISTS)
    assert isinstance(new, EventSample)
    assert new.context == changed
    assert (new.meta["swapped"]["from"], new.meta["swapped"]["to"]) == (answer, other)


@pytest.mark.parametrize(
    ("context", "question", "answer", "other", "why"),
    [
        ("Barack Obama won. Obama spoke.", "Who was Obama?", "Barack Obama", "John Smith", Refusal.TRACES),
        ("The red barn burnt. The barn was old.", "What burnt?", "red barn", "tall mill", Refusal.TRACES),
        ("The Jin Institute grew. The institute is old.", "Which?", "Jin Institute", "Tang Bank", Refusal.TRACES),
        ("Peru won. The Peruvian side sang.", "Who won?", "Peru", "Oslo", Refusal.TRACES),
        ("Rosa Luz met Ann Lee.", "Who met Ann Lee?", "Rosa Luz", "Ann Lee", Refusal.NO_OTHER),
        ("Rosa Luz met Ann.", "Who met Ann?", "Rosa Luz", "Ann Lee", Refusal.NO_OTHER),
        ("In 1990 it had 5 of 7 seats.", "How many seats of 7?", "5", "7", Refusal.NO_OTHER),
        ("It is the 5th house.", "Which is the fifth?", "5th house", "6th house", Refusal.NO_OTHER),
        ("Christian churches grew.", "Which?", "Christian", "Green Party", Refusal.NO_OTHER),
    ],
)
def test_what_would_not_change_along_is_refused(
    context: str, question: str, answer: str, other: str, why: Refusal
) -> None:
    assert revised(_row(context, question, answer), other, Pool.LISTS) is why


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("August 15, 1971", r"August (?!15)(?:[1-9]|1\d|2[0-8]), 1971"),
        ("May 1994", r"(?!May)[A-Z][a-z]+ 1994"),
        ("mid 1994", r"mid (?!1994)(?:198[4-9]|199\d|200[0-4])"),
        ("$41 trillion", r"\$(?!41)[2-8]\d trillion"),
        ("3,500 men", r"(?!3,500)[1-7],\d00 men"),
        ("90%", r"(?!90)[4-9]0%"),
        ("at least four passengers", r"at least (?!four)[a-z]+ passengers"),
        ("18th century", r"(?!18th)\d\d(?:st|nd|rd|th) century"),
        ("Monday", r"(?!Monday)[A-Z][a-z]+day"),
        ("Lima", None),
        ("1 mile", None),
        ("42-500", None),
        ("VT-4 of 4 men", None),
    ],
)
def test_other_numbers_keep_the_form_of_the_answer(answer: str, form: str | None) -> None:
    found = [text for seed in range(10) for text in other_numbers(answer, random.Random(seed))]
    assert bool(found) == (form is not None)
    for text in found:
        assert re.fullmatch(str(form), text), text


def test_a_small_number_is_known_in_all_its_forms() -> None:
    assert number_forms("fifth") == number_forms("5th") | {"fifth"} == {"5", "5th", "five", "fifth"}
    assert number_forms("42") == {"42", "42nd"}
    assert number_forms("Lima") == set()


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


@pytest.mark.parametrize(
    ("order", "pools"),
    [
        ("lists,dataset", ["lists", "lists"]),
        ("dataset, lists", ["dataset", "dataset"]),
        ("lists,options", ["options", "lists"]),  # a row with choices takes one of them
        ("options", ["options", None]),
    ],
)
def test_the_pools_are_asked_in_the_given_order(order: str, pools: list[str | None]) -> None:
    rows = [_row("It was in 1990.", "When was it?", "1990", "1985"), _row("It was in 1991.", "When was it?", "1991")]
    done, swaps = swap_samples(rows, 1.0, random.Random(0), SwapOptions.model_validate({"pools": order}))
    assert [row.meta.get("swapped", {}).get("pool") for row in done] == pools
    assert swaps.refused == ({Refusal.NO_OTHER: 1} if None in pools else {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pools": "model"}, "swap.pools has model without one"),
        ({"pools": "lists", "model": "m"}, "expected model among them"),
        ({"proposals": 3}, "swap.proposals without --swap-model"),
        ({"pools": "words"}, "'options', 'lists', 'dataset' or 'model'"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SwapOptions.model_validate(options)

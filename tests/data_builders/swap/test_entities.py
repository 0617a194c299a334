"""Kinds and types of answers, other things of a type, and whether an answer can stand where another one stood."""

import random
import re

import pytest

from data_builders.swap.candidates import Writing, same_form
from data_builders.swap.entities import kind_of, number_forms, other_numbers, others_of_type, type_of, wider
from data_builders.swap.revise import has_traces, head

SEEN = "he lives in the netherlands . she plays for ajax in peru , and rosa luz wrote that the world bank paid ."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1994", "When was it?"), ("2003", "In which year did it close?")),
        (("May 1994", "When was it?"), ("October 2003", "When did it close?")),
        (("March 4, 1832", "When?"), ("June 27, 2001", "When?")),
        (("25%", "How much?"), ("40%", "What share?")),
        (("three", "How many?"), ("ten", "How many?")),
        (("garage", "Where is the key now?"), ("barn", "Where is the coin now?")),
        (("Ajax", "Which club did Ann play for in 1994?"), ("Real Madrid", "Which club was Bob a member of?")),
        (("Ann Lee", "Who led the team?"), ("Rosa Luz", "If it had rained, who would have led the club?")),
        (("the cap", "What does Box 1 contain?"), ("the bell", "What does Box 13 contain?")),
        (("Ann Lee", "The mayor was whom?"), ("Rosa Luz", "Who was it?")),
    ],
)
def test_answers_of_one_kind(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert kind_of(*one, SEEN) == kind_of(*other, SEEN) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1994", "When?"), ("May 1994", "When?")),
        (("May 1994", "When?"), ("4 May", "When?")),
        (("5", "How many?"), ("1,500", "How many?")),
        (("3 km", "How far?"), ("3 kg", "How far?")),
        (("Ajax", "Which club did Ann play for?"), ("Ajax", "Which country did Ann play for?")),
        (("Ann Lee", "Who led it?"), ("Ajax", "Who led it?")),
        (("Ann Lee", "Who led it?"), ("World Bank", "Who led it?")),
        (("Costa Rica", "Who won?"), ("the Netherlands", "Who won?")),
        (("a cap", "Where?"), ("the cap", "Where?")),
        (("the cap", "Where?"), ("the cap and the bell", "Where?")),
        (("dogs", "Where?"), ("dog", "Where?")),
        (("higher costs", "What caused the loss?"), ("a fire", "What caused the panic?")),
        (("Paris", "Where?"), ("Paris, Texas", "Where?")),
    ],
)
def test_answers_of_different_kinds(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert kind_of(*one, SEEN) != kind_of(*other, SEEN)


def test_other_answers_than_entities_have_no_kind() -> None:
    for answer in ("nothing", "Yes", "it", "?", "the", "because a fire broke out in the old mill", "the cap,"):
        assert kind_of(answer, "What happened?", SEEN) is None, answer


def test_a_wider_kind_ignores_the_number_of_words_and_what_stands_between_them() -> None:
    for one, other in [("the shop", "the cold store"), ("Paris", "Paris, Utah"), ("Ajax", "Bank of Peru")]:
        first, second = kind_of(one, "Where?", ""), kind_of(other, "Where?", "")
        assert first != second
        assert wider(first) == wider(second)
    assert wider(kind_of("in a shop", "Where?", "")) != wider(kind_of("the shop", "Where?", ""))


@pytest.mark.parametrize(
    ("answer", "asked", "context", "kind"),
    [
        ("Peru", "who", "Peru won.", "countries"),
        ("Welsh", "language", "She spoke Welsh.", "languages"),
        ("Welsh", "club", "She is Welsh.", "natives"),
        ("Kiruna", "city", "In Kiruna.", "cities"),
        ("Derby Works", "company", "Derby Works built it.", "Works"),
        ("Bank of Derby Works", "company", "It built it.", "Works"),  # the last one
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
        # Titles, initials, numerals and types stay.
        ("Ann B. Lee", "who", "Ann B. Lee came.", r"[A-Z]\w+ B\. [A-Z]\w+"),
        ("Sir Ian Lee", "who", "Sir Ian Lee came.", r"Sir [A-Z]\w+ [A-Z]\w+"),
        ("Richard II", "king", "Richard II came.", r"[A-Z]\w+ II"),
        ("Darlington Works", "company", "Darlington Works made it.", r"[A-Z]\w+ Works"),
        ("Bank of Norway", "bank", "The Bank of Norway.", r"Bank of [A-Z]\w+"),
        ("Peru", "country", "He left Peru.", r"[A-Z].+"),
        # There is no list, or the type is not where it can be replaced.
        ("Peru", "country", "He left the Peru.", None),
        ("University of Oxford", "where", "At the University of Oxford.", None),
        ("United States Army", "organization", "The United States Army.", None),
        ("Derby Works Lee", "company", "Derby Works Lee made it.", None),
        ("Ann van der Lee Jr.", "who", "Ann van der Lee Jr. came.", None),  # not a name of two or three words
    ],
)
def test_others_of_a_type(answer: str, asked: str, context: str, form: str | None) -> None:
    found = others_of_type(answer, asked, context, random.Random(0))
    assert isinstance(found, list)
    assert bool(found) == (form is not None)
    for text in found:
        assert re.fullmatch(str(form), text), text
        assert text != answer


def test_words_near_a_name_that_no_list_has_tell_a_woman() -> None:
    def first_names(context: str) -> set[str]:
        found = others_of_type("Zorblax Lee", "who", context, random.Random(0))
        return {text.split()[0] for text in found}

    she, he = first_names("Zorblax Lee won her prize."), first_names("Zorblax Lee won his prize.")
    assert not she & he
    # Words count up to 60 characters before a mention and 120 after it.
    for near, far in ((f"she {'x' * 50} Zorblax Lee", f"she {'x' * 70} Zorblax Lee"),
                      (f"Zorblax Lee {'x' * 110} she", f"Zorblax Lee {'x' * 125} she")):  # fmt: skip
        assert (first_names(near), first_names(far)) == (she, he)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("August 15, 1971", r"August (?!15)(?:[1-9]|1\d|2[0-8]), 1971"),
        ("May 1994", r"(?!May)[A-Z][a-z]+ 1994"),
        ("mid 1994", r"mid (?!1994)(?:198[4-9]|199\d|200[0-4])"),
        ("$41 trillion", r"\$(?!41)[2-8]\d trillion"),
        ("3,500 men", r"(?!3,500)[1-7],\d00 men"),
        ("2.5 km", r"(?!2\.)[3-9]\.[1-9] km"),
        ("90%", r"(?!90)[4-9]0%"),
        ("at least four passengers", r"at least (?!four)[a-z]+ passengers"),
        ("18th century", r"(?!18th)\d\d(?:st|nd|rd|th) century"),
        ("Monday", r"(?!Monday)[A-Z][a-z]+day"),
        ("Lima", None),
        ("1 mile", None),
        ("42-500", None),
        ("VT-4 of 4 men", None),
        ("250%", None),  # no other share of this size is below 100 %
        ("100%", None),
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
    ("answer", "other", "same"),
    [
        ("a red barn", "the mill", True),
        ("a red barn", "in the mill", False),
        ("disease", "injuries", False),
        ("28 days", "20 days", True),
        ("28 days", "20 hours", False),
        ("Rosa Luz", "Ann Lee", True),
        ("Rosa Luz", "a red barn", False),
        ("to leave", "leaving", False),
        ("it was dark", "a lamp", False),
        ("one lamp", "one lamp of all the lamps in the old red barn", False),
    ],
)
def test_answers_of_one_form(answer: str, other: str, same: bool) -> None:
    assert same_form(answer, other) == same


@pytest.mark.parametrize(
    ("other", "answer", "written"),
    [
        ("Injury", "disease", "injury"),
        ("Lima", "disease", "Lima"),
        ("Omelia", "disease", "Omelia"),
        ("DNA", "disease", "DNA"),
        ("In the hills.", "on the coast", "in the hills"),
        ("Injury", "Disease", "Injury"),
    ],
)
def test_a_capital_stays_where_a_name_or_the_answer_has_it(other: str, answer: str, written: str) -> None:
    assert Writing(["We saw Omelia in spring."]).fitted(other, answer) == written


@pytest.mark.parametrize(
    ("entity", "rest", "traces"),
    [
        ("red barn", "The barn was old.", True),
        ("red barn", "A red hat.", False),
        ("the hook and the mask", "Move the hook.", True),
        ("Israel", "the Israeli side", True),
        ("British Broadcasting Corporation", "the BBC said", True),
        ("Darlington Works", "it works", False),
        ("28 days", "28 hours", False),
    ],
)
def test_traces(entity: str, rest: str, traces: bool) -> None:
    assert has_traces(entity, "Oslo", rest, frozenset()) == traces
    assert [head(phrase) for phrase in ("the level of risk", "a red barn")] == ["level", "barn"]

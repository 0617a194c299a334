"""Kinds and types of answers, other things of a type, and whether an answer can stand where another one stood."""

import random
import re
from pathlib import Path

import pytest
import yaml

from data_builders.swap.candidates import Writing, same_form
from data_builders.swap.entities import kind_of, number_forms, other_numbers, others_of_type, type_of, wider
from data_builders.swap.revise import has_traces, head

CASES = yaml.safe_load(Path(__file__).with_name("entities.yaml").read_text(encoding="utf-8"))
SEEN = "he lives in the netherlands . she plays for ajax in peru , and rosa luz wrote that the world bank paid ."


@pytest.mark.parametrize(("one", "other"), CASES["of one kind"])
def test_answers_of_one_kind(one: list[str], other: list[str]) -> None:
    assert kind_of(*one, SEEN) == kind_of(*other, SEEN) is not None


@pytest.mark.parametrize(("one", "other"), CASES["of different kinds"])
def test_answers_of_different_kinds(one: list[str], other: list[str]) -> None:
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


@pytest.mark.parametrize(("answer", "asked", "context", "kind"), CASES["types"])
def test_the_type_of_an_entity(answer: str, asked: str, context: str, kind: str) -> None:
    assert type_of(answer, asked, context) == kind


@pytest.mark.parametrize(("answer", "asked", "context", "form"), CASES["others of a type"])
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


@pytest.mark.parametrize(("answer", "form"), CASES["other numbers"])
def test_other_numbers_keep_the_form_of_the_answer(answer: str, form: str | None) -> None:
    found = [text for seed in range(10) for text in other_numbers(answer, random.Random(seed))]
    assert bool(found) == (form is not None)
    for text in found:
        assert re.fullmatch(str(form), text), text


def test_a_small_number_is_known_in_all_its_forms() -> None:
    assert number_forms("fifth") == number_forms("5th") | {"fifth"} == {"5", "5th", "five", "fifth"}
    assert number_forms("42") == {"42", "42nd"}
    assert number_forms("Lima") == set()


@pytest.mark.parametrize(("answer", "other", "same"), CASES["of one form"])
def test_answers_of_one_form(answer: str, other: str, same: bool) -> None:
    assert same_form(answer, other) == same


@pytest.mark.parametrize(("other", "answer", "written"), CASES["capitals"])
def test_a_capital_stays_where_a_name_or_the_answer_has_it(other: str, answer: str, written: str) -> None:
    assert Writing(["We saw Omelia in spring."]).fitted(other, answer) == written


@pytest.mark.parametrize(("entity", "rest", "traces"), CASES["traces"])
def test_traces(entity: str, rest: str, traces: bool) -> None:
    assert has_traces(entity, "Oslo", rest, frozenset()) == traces
    assert [head(phrase) for phrase in ("the level of risk", "a red barn")] == ["level", "barn"]

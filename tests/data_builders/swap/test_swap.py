"""Swaps: the answer follows from the text, no trace of the old one is left, nonsense is refused; habits; kinds."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.data.sample import EventSample, Subset
from data_builders.swap.candidates import SwapOptions, Writing, same_form
from data_builders.swap.entities import in_digits, kind_of, other_numbers, others_of_type, type_of, wider
from data_builders.swap.revise import Pool, Refusal, has_traces, head, revised
from data_builders.swap.swap import Habits, Swaps, _subset_by, swap_samples, with_twins

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def _row(number: int, context: str, question: str, *answers: str, **other: object) -> EventSample:
    fields = {"id": f"hand-{number}", "dataset": "hand", "split": "train", "relation": "causal", "format": "qa"}
    parts = {"context": context, "question": question, "answers": answers}
    return EventSample.model_validate({**fields, **parts, **other})


def _swap(*rows: EventSample, share: float = 1.0, seed: int = 0, **options: object) -> tuple[list[EventSample], Swaps]:
    """Swap in a pool of the other rows, unless the options name others."""
    chosen = SwapOptions.model_validate({"pools": "options,dataset", **options})
    return swap_samples(rows, share, random.Random(seed), chosen)


def _twins(*rows: EventSample) -> tuple[list[EventSample], Swaps]:
    return with_twins(rows, 1.0, random.Random(0), SwapOptions.model_validate({"pools": "dataset"}))


# Two towns, so that each is the other's substitute.
TOWN = _row(0, "Ann moved to Lima in May. Lima is warm.", "Which town did Ann move to?", "Lima")
OTHER = _row(1, "Bob left Oslo for good.", "Which town did Bob leave?", "Oslo")
KEY = _row(2, "The key is in the barn.", "Where?", "barn", format="scq", options=["garage", "barn", "Lima"])


@pytest.mark.parametrize(("context", "question", "answer", "other", "outcome"), CASES["revised"])
def test_another_entity_becomes_the_answer_or_there_is_a_reason(
    context: str, question: str, answer: str, other: str, outcome: str
) -> None:
    new = revised(_row(0, context, question, answer), other, Pool.LISTS)
    if isinstance(new, EventSample):
        assert new.context == outcome
        assert (new.meta["swapped"]["from"], new.meta["swapped"]["to"]) == (answer, other)
    else:
        assert new is Refusal[outcome]


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (
            TOWN.model_copy(update={"refined_context": "Lima is warm."}),
            {"context": "Ann moved to Oslo in May. Oslo is warm.", "refined_context": "Oslo is warm."},
        ),
        (TOWN.model_copy(update={"context": "Ann left Oslo for Lima."}), {"context": "Ann left Lima for Oslo."}),
        (KEY, {"context": "The key is in the garage.", "answers": ["garage"]}),  # another of its options
    ],
)
def test_the_answer_and_the_other_entity_change_places(row: EventSample, changed: dict[str, object]) -> None:
    (new, _), _ = _swap(row, OTHER)
    expected = {"answers": ["Oslo"], "subset": None, "options": row.options, **changed}
    assert {name: getattr(new, name) for name in expected} == expected


def test_an_answer_is_found_with_another_apostrophe() -> None:
    (new, _), _ = _swap(_row(2, "Ann flew to O’Hare.", "Which town did Ann fly to?", "O'Hare"), OTHER)
    assert (new.context, new.answers) == ("Ann flew to Oslo.", ["Oslo"])


@pytest.mark.parametrize(("why", "context", "question", "answers", "other"), CASES["refused"])
def test_a_swap_without_sense_is_refused_with_a_reason(
    why: str, context: str, question: str, answers: list[str], other: dict[str, object]
) -> None:
    row = _row(2, context, question, *answers, **other)
    rows, swaps = _swap(row, TOWN, OTHER)  # the others can be swapped
    assert rows[0] == row
    assert swaps.refused == {Refusal[why]: 1}


@pytest.mark.parametrize(
    ("context", "answer", "changed"),
    [
        ("Ann has Premium now.", "Premium.", ("Ann has {} now.", "{}.")),
        ("Ann has Premium. It is dear.", "Premium.", ("Ann has {}. It is dear.", "{}.")),
        ("It is made by Acme Corp. of Lima.", "Acme Corp.", ("It is made by {} of Lima.", "{}")),
    ],
)
def test_a_full_stop_that_ends_the_answer_stays(context: str, answer: str, changed: tuple[str, str]) -> None:
    (new,), _ = _swap(_row(0, context, "Which?", answer, meta={"choices": ["Basic Plus"]}))
    assert (new.context, new.answers[0]) == tuple(text.format("Basic Plus") for text in changed)


def test_a_month_is_no_date_if_the_question_asks_who() -> None:
    row = _row(0, "It was April who won.", "Who won?", "April")
    assert _swap(row, pools="lists")[0] == [row]


@pytest.mark.parametrize("answer", ["May", "4 May", "May 4, 1990", "May 1990"])
def test_a_date_in_may_is_swapped_for_another_date(answer: str) -> None:
    (new,), swaps = _swap(_row(0, f"It opened in {answer}.", "When may it open?", answer), pools="lists")
    assert swaps.pools == {Pool.LISTS: 1}
    assert new.context == f"It opened in {new.answers[0]}."
    assert new.answers != [answer]


def test_a_number_that_counts_one_thing_is_swapped_wherever_it_stands() -> None:
    (new,), swaps = _swap(_row(0, "He bought 12 pens. The 12 pens are red.", "How many pens?", "12"), pools="lists")
    assert swaps.pools == {Pool.LISTS: 1}
    assert new.context == "He bought {0} pens. The {0} pens are red.".format(*new.answers)


def test_a_year_is_swapped_only_for_a_near_one_that_keeps_the_order_of_years() -> None:
    asked = "When was it built?"
    row = _row(2, "Planned for 2019, it opened in 2021.", asked, "2019")
    years = {"2018": True, "2020": True, "2022": False, "1944": False, "2021": False}
    for year, fits in years.items():
        rows, _ = _swap(row, _row(3, f"{year} was it.", asked, year), pools="dataset")
        assert (rows[0].answers == [year]) == fits, year
    for seed in range(20):
        listed, swaps = _swap(row, seed=seed, pools="lists")
        assert int(listed[0].answers[0]) in {*range(2009, 2021)} - {2019}
        assert swaps.pools == {Pool.LISTS: 1}


@pytest.mark.parametrize("fmt", ["qa", "scq"])
@pytest.mark.parametrize(("context", "answer", "choices", "changed", "other"), CASES["choices"])
def test_a_choice_of_the_same_form_is_taken_and_written_as_the_context_writes(
    context: str, answer: str, choices: list[str], changed: str, other: str, fmt: str
) -> None:
    offered = {"meta": {"choices": choices}} if fmt == "qa" else {"options": [answer, *choices]}
    row = _row(0, context, "What was it?", answer, format=fmt, **offered)
    (new,), swaps = swap_samples([row], 1.0, random.Random(0), SwapOptions())
    assert new.context == changed
    assert new.answers[0].casefold() == other.casefold()
    assert new.answers[0] in (new.options or new.answers)
    assert new.meta["swapped"]["pool"] == "options"
    assert swaps.describe()["pools"] == {"options": 1}


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
    first = _row(0, "It was in 1990.", "When was it?", "1990", meta={"choices": ["1985"]})
    done, swaps = _swap(first, _row(1, "It was in 1991.", "When was it?", "1991"), pools=order)
    assert [row.meta.get("swapped", {}).get("pool") for row in done] == pools
    assert swaps.refused == ({Refusal.NO_OTHER: 1} if None in pools else {})


def test_missing_swaps_are_counted() -> None:
    nothing = _row(5, "It rained.", "Why?", "clouds")
    rows, swaps = _swap(nothing, TOWN, OTHER, nothing.model_copy(update={"id": "hand-6"}), share=0.75)
    assert (swaps.wanted, swaps.swapped, swaps.refused[Refusal.ABSENT]) == (3, 2, 2)
    assert [row.id for row in rows] == ["hand-5", "hand-0-swapped", "hand-1-swapped", "hand-6"]


def test_the_originals_answer_is_the_habit_of_its_twin() -> None:
    rows, swaps = _twins(TOWN, _row(5, "It rained.", "Why?", "clouds"), OTHER)
    assert [row.id for row in rows] == ["hand-0", "hand-0-swapped", "hand-5", "hand-1", "hand-1-swapped"]
    assert [row.subset for row in rows] == ["aligned", "conflict", None, "aligned", "conflict"]
    first, twin = rows[:2]
    assert (first.answers, first.habit, twin.habit) == (TOWN.answers, TOWN.answers, TOWN.answers)
    assert (twin.answers, TOWN.answers[0] in twin.context) == (OTHER.answers, False)
    assert (swaps.wanted, swaps.swapped) == (3, 2)
    tagged = TOWN.model_copy(update={"subset": "gold"})
    assert _twins(tagged, OTHER)[0][0] == tagged


@pytest.mark.parametrize(
    ("subset", "habit", "of_twin"),
    [("aligned", TOWN.answers, "conflict"), ("conflict", ["Ulm"], "conflict"), ("unknown", [], "unknown")],
)
def test_a_tagged_row_stays_and_its_twin_has_the_models_habit(subset: Subset, habit: list[str], of_twin: str) -> None:
    meta = {**TOWN.meta, "tag": {"model": "m", "probability": 0.9}}
    tagged = TOWN.model_copy(update={"subset": subset, "habit": habit, "meta": meta})
    (row, twin, *_), swaps = _twins(tagged, OTHER)
    assert row == tagged
    assert (twin.id, twin.subset, twin.habit, twin.answers) == ("hand-0-swapped", of_twin, habit, OTHER.answers)
    assert twin.meta["tag"] == meta["tag"]
    assert swaps.rows == 2


def test_a_chat_row_is_swapped_unless_another_turn_names_the_answer() -> None:
    asked = "Which town did Ann move to?"
    chat = [
        row.model_copy(update={"format": "chat", "conversation": prompt_turns("{context}\n{question}", said, asked)})
        for row, said in ((TOWN, "Be brief."), (OTHER, f"Say {OTHER.answers[0]}."))
    ]
    rows, swaps = _swap(*chat)
    assert swaps.refused[Refusal.IN_QUESTION] == 1
    assert rows[1] == chat[1]


ASKED = "Where is the key?"


def _asked(question: str, answer: str, *, context: str = "", **other: Any) -> EventSample:
    fields = {"id": "1", "dataset": "mine", "split": "test", "relation": "none", "format": "qa"}
    text = context or f"It is in {answer}."
    return EventSample.model_validate({**fields, "context": text, "question": question, "answers": [answer], **other})


def _rows(question: str, answers: dict[str, int]) -> list[EventSample]:
    """So many rows of each answer; `{n}` in the question is their number."""
    every = [answer for answer, count in answers.items() for _ in range(count)]
    return [_asked(question.format(n=n), answer) for n, answer in enumerate(every)]


def _habit(question: str, *train: EventSample, **other: Any) -> list[str]:
    return Habits(train).of(_asked(question, "Rome", **other))


@pytest.mark.parametrize(("train", "asked", "habit"), CASES["habits"])
def test_the_habit_is_the_majority_of_its_question(
    train: dict[str, dict[str, int]], asked: str, habit: list[str]
) -> None:
    assert _habit(asked, *(row for question, answers in train.items() for row in _rows(question, answers))) == habit


def test_a_swapped_row_counts_with_the_answer_that_it_had() -> None:
    assert _habit(ASKED, *[_asked(ASKED, "x", meta={"swapped": {"from": "the barn", "to": "x"}})] * 20) == ["the barn"]


@pytest.mark.parametrize(("options", "habit"), [(["Rome", "barn"], ["barn"]), (["Rome", "Oslo"], [])])
def test_the_habit_of_a_row_with_options_is_one_of_them(options: list[str], habit: list[str]) -> None:
    choice: dict[str, Any] = {"format": "scq", "options": ["Rome", "barn"]}
    train = [_asked(ASKED, "barn", **choice)] * 20
    assert _habit(ASKED, *train, **{**choice, "options": options}) == habit


def _tagged(*rows: EventSample, train: list[EventSample]) -> tuple[list[EventSample], Swaps]:
    options = SwapOptions.model_validate({"pools": "dataset"})
    return with_twins(rows, 1.0, random.Random(0), options, train, train=train)


USUAL = _rows(ASKED, {"the barn": 16, "the shop": 2, "the cold store": 2})


@pytest.mark.parametrize(
    ("answer", "subset"), [("the barn", "aligned"), ("the shop", "conflict"), ("the red barn", "unknown")]
)
def test_row_and_twin_are_tagged_by_the_habit_which_is_never_the_twins_answer(answer: str, subset: str) -> None:
    for _ in range(20):
        (row, twin), swaps = _tagged(_asked(ASKED, answer), train=USUAL)
        assert (row.subset, row.habit, row.answers) == (subset, ["the barn"], [answer])
        assert (twin.subset, twin.habit) == ("conflict", ["the barn"])
        assert twin.answers[0] in {"the shop", "the cold store"} - {answer}
        assert twin.context == f"It is in {twin.answers[0]}."
        assert swaps.describe()["habits"] == {"the barn": 1}


def test_a_habit_of_its_own_and_missing_evidence_leave_the_training_rows_aside() -> None:
    own = _asked(ASKED, "the shop", habit=["the attic"])
    (row, twin), swaps = _tagged(own, train=USUAL)
    assert (row.subset, row.habit, twin.habit, twin.subset) == ("conflict", ["the attic"], ["the attic"], "conflict")
    assert "habits" not in swaps.describe()
    (row, twin), swaps = _tagged(_asked(ASKED, "the shop"), train=USUAL[5:])
    assert (row.subset, row.habit, twin.habit, twin.subset) == ("aligned", ["the shop"], ["the shop"], "conflict")
    assert "habits" not in swaps.describe()
    (row,), _ = _tagged(_asked(ASKED, "the shop", context="Look there."), train=USUAL)  # cannot be swapped
    assert (row.subset, row.habit) == (None, [])


@pytest.mark.parametrize(
    ("row", "habit", "subset"),
    [
        ({"format": "scq", "options": ["-5", "5"]}, "-5", "conflict"),
        ({"format": "scq", "options": ["-5", "5"]}, "5", "aligned"),
        ({}, "-5", "unknown"),  # exact match of free text cannot tell them apart
        ({}, "The 5.", "aligned"),
    ],
)
def test_a_habit_that_differs_in_a_sign_is_not_the_answer(row: dict[str, Any], habit: str, subset: str) -> None:
    assert _subset_by([habit], _asked(ASKED, "5", **row)) == subset


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


def test_a_number_is_known_in_all_its_forms() -> None:
    text = "five Fifth 5th, 1,000 and twenty-five or Twenty first; 12,345th; twelfth, nineteenth, thirtieth"
    assert in_digits(text) == "5 5 5, 1000 and 25 or 21; 12345; 12, 19, 30"
    for other in ("Lima, one of 42", "10:30, 4.5 and May 4, 1990", "3,14 and 1,0000"):
        assert in_digits(other) == other


@pytest.mark.parametrize(("answer", "other", "same"), CASES["of one form"])
def test_answers_of_one_form(answer: str, other: str, same: bool) -> None:
    assert same_form(answer, other) == same


@pytest.mark.parametrize(("other", "answer", "written"), CASES["capitals"])
def test_a_capital_stays_where_a_name_or_the_answer_has_it(other: str, answer: str, written: str) -> None:
    assert Writing(["We saw Omelia in spring."]).fitted(other, answer) == written


@pytest.mark.parametrize(("entity", "rest", "traces"), CASES["traces"])
def test_traces(entity: str, rest: str, traces: bool) -> None:
    assert has_traces(entity, "Oslo", rest) == traces
    assert [head(phrase) for phrase in ("the level of risk", "a red barn")] == ["level", "barn"]

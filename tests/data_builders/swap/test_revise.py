"""Parts and forms of a name change with it, or the row is refused."""

from __future__ import annotations

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.swap.candidates import Pool
from data_builders.swap.revise import Refusal, revised
from tests.tiny import make_sample


def _row(context: str, question: str, answer: str) -> EventSample:
    return make_sample(context=context, refined_context=None, question=question, answers=[answer])


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

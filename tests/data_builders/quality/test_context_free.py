"""The habit of rows by their own questions: what the others answer, and never what a row itself answers."""

from __future__ import annotations

from typing import Any

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.quality.context_free import guess_habits, guesses
from tests.tiny import make_sample

THINGS = {"key": "garage", "lamp": "attic"}


def stories(count: int, *, conflict: int, split: str = "train", **changes: Any) -> list[EventSample]:
    """Where things are; the answer of every `conflict`-th row is the row's own place."""
    rows = []
    for number in range(count):
        thing = [*THINGS][number % 2]
        place = f"barn {number}" if number % conflict == 0 else THINGS[thing]
        fields = {"context": f"{split} {number}: the {thing} is in the {place}.", "refined_context": None}
        asked = {"question": f"Where is the {thing} now?", "answers": [place], "split": split}
        rows.append(make_sample(number, **{**fields, **asked, **changes}))
    return rows


def test_a_free_answer_is_what_the_same_question_has_elsewhere() -> None:
    rows = stories(40, conflict=10)
    found = guesses(rows)
    assert found is not None
    habits = [THINGS[[*THINGS][number % 2]] for number in range(40)]
    assert [said for said, _ in found] == habits, "also where the row itself disagrees"
    assert all(0.6 < sure <= 1 for _, sure in found)


def test_rows_with_the_same_context_do_not_teach_each_other() -> None:
    # Each context is asked twice, and its answer is its own: only the row with the same context has it.
    fields = [{"context": f"Year {n}.", "question": f"Which year {n}?", "answers": [f"{n}"]} for n in range(20)]
    rows = [make_sample(n, **fields[n // 2]) for n in range(40)]
    found = guesses(rows)
    assert found is not None
    assert not any(said in row.answers for (said, _), row in zip(found, rows, strict=True))


def test_test_rows_are_tagged_by_the_training_rows() -> None:
    # In the test rows most answers contradict the habit of the training rows.
    rows = [*stories(40, conflict=10), *stories(20, conflict=1, split="test")]
    found = guesses(rows)
    assert found is not None
    assert {said for said, _ in found[40:]} == set(THINGS.values())


def test_labels_and_options_have_the_likeliest_one() -> None:
    def labelled(number: int) -> EventSample:
        always = "always" if number % 2 else "never"
        answer = "negative" if number % 2 else "positive"
        if number == 7:
            answer = "positive"
        return make_sample(
            number, format="nli", question=f"It {always} rained.", answers=[answer], context=f"{number}."
        )

    labels = [labelled(number) for number in range(40)]
    found = guesses(labels)
    assert found is not None
    assert [said for said, _ in found] == ["negative" if n % 2 else "positive" for n in range(40)]
    options = [
        make_sample(n, format="scq", options=[f"rain {n}", f"sun {n}"], answers=[f"{'sun' if n == 5 else 'rain'} {n}"],
                    question="What came?", context=f"{n}.")
        for n in range(40)
    ]  # fmt: skip
    chosen = guesses(options)
    assert chosen is not None
    assert [said for said, _ in chosen] == [f"rain {n}" for n in range(40)]
    assert min(sure for _, sure in chosen) > 0.5


def test_too_few_contexts_have_no_habit_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    few = stories(4, conflict=2, dataset="few")
    with pytest.raises(UserError, match=r"data: fewer than 10 different contexts in 4 rows of few \(qa\)"):
        guess_habits(few, "data")
    found = guess_habits([*few, *stories(20, conflict=10)], "data")
    assert [bool(said) for said, _ in found] == [False] * 4 + [True] * 20
    assert "4 rows of few (qa)" in capsys.readouterr().err

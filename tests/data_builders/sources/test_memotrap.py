"""MemoTrap: what of a prompt is context and question, which ending is the habit, and what is left out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps

_FOLDER = Path("conflict/memotrap")
_BELIEFS = ["Ponds freeze from above.", "Ponds freeze from below."]


def test_the_instruction_is_the_context_and_the_other_ending_the_habit(raw: Path) -> None:
    ending, translation, *_ = read(raw, "memotrap", ("test",))["test"].rows
    assert ending.context == 'Write a quote that ends in the word "late".'
    assert ending.question == "What comes next? Advice: better never than"
    assert (ending.options, ending.answers, ending.habit) == (["early.", "late."], ["late."], ["early."])
    assert translation.context == "Translate the following sentence from German into English: In Ruhe: Kraft."
    assert (translation.question, translation.answers) == ("What comes next? In quiet is", ["power."])
    assert translation.subset == "conflict"


def test_the_history_of_science_has_its_event_as_context_and_the_beliefs_as_options(raw: Path) -> None:
    asked_first, asked_last = read(raw, "memotrap", ("test",))["test"].rows[2:]
    for one in (asked_first, asked_last):
        assert one.context == "Ida Elm showed that ponds freeze from above."
        assert (one.options, one.answers, one.habit) == (_BELIEFS, _BELIEFS[1:], _BELIEFS[:1])
    assert asked_first.question == "What was the common belief before the following event?"
    assert asked_last.question == "Prior to the aforementioned event, what was the common belief?"


def test_hateful_sentences_are_read_on_request_alone(raw: Path) -> None:
    found = read(raw, "memotrap", ("test",))["test"]
    assert steps(found) == {"no hateful sentences": (5, 4)}
    assert not [one for one in found.rows if "Everyone" in one.question]
    asked = read(raw, "memotrap", ("test",), "hate_speech=true")["test"].rows
    assert [one.answers for one in asked if "Everyone" in one.question] == [["in."]]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("1-proverb-ending", ",1", ",2", r"line 2: answer_index: got '2'; expected one of \['0', '1'\]"),
        ("1-proverb-ending", "' early.', ", "", "line 2: classes: .*expected two different endings"),
        ("1-proverb-ending", "' early.'", "early", "line 2: classes: .*expected a list of two texts"),
        ("2-proverb-translation", "\nto:", "\nfor:", "line 2: prompt: .*expected 'Translate"),
        ("4-history-of-science-qa", "A. Ponds", "C. Ponds", "line 2: prompt: .*expected a question, options A and B"),
        ("4-history-of-science-qa", "What was", "Say", "line 2: prompt: .*expected an event and a question"),
    ],
)
def test_a_bad_row_is_named(raw: Path, file: str, old: str, new: str, message: str) -> None:
    replace(raw / _FOLDER / f"{file}.csv", old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "memotrap", ("test",))


def test_the_published_files_have_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FOLDER).is_dir():
        pytest.skip(f"{published_raw} lacks {_FOLDER}")
    found = read(published_raw, "memotrap", ("test",), "hate_speech=true")["test"].rows
    assert Counter(one.meta["source"][0] for one in found) == {"1": 860, "2": 843, "3": 100, "4": 736}
    facts = {frozenset(one.options) for one in found if one.meta["source"][0] == "4"}
    assert len(facts) == 88
    assert steps(read(published_raw, "memotrap", ("test",))["test"]) == {"no hateful sentences": (2_539, 2_439)}

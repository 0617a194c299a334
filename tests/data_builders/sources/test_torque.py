"""TORQUE: events as options, and which questions go against which prior."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.sources.torque import number_repeats
from tests.data_builders.conflict_rows import TORQUE_TABLE
from tests.data_builders.reading import read, replace, steps

_FOLDER = Path("conflict/event-temporal")
_DEV = _FOLDER / "torque/individual_dev_end2end_final.json"


@pytest.mark.parametrize("lists", ["files", "table"])
@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ("any", {"0": "conflict", "1": "conflict", "3": "aligned"}),
        ("narrative", {"0": "conflict", "1": "aligned", "3": "aligned"}),
        ("tense_relation", {"0": "aligned", "1": "conflict", "3": "aligned"}),
    ],
)
def test_the_subset_is_that_of_the_chosen_prior(raw: Path, bias: str, expected: dict[str, str], lists: str) -> None:
    if lists == "table":
        for path in (raw / _FOLDER / "torque").glob("*_bias*.json"):
            path.unlink()
        (raw / _FOLDER / "derived").mkdir()
        (raw / _FOLDER / "derived/torque_subsets.json").write_text(TORQUE_TABLE)
    found = read(raw, "torque", ("test",), f"bias={bias}")["test"]
    assert {one.id[-1]: one.subset for one in found.rows} == expected
    assert steps(found) == {"questions with an answer": (5, 4), "questions in a published subset": (4, 3)}
    assert (found.rows[0].meta["conflicts_with"], found.rows[0].meta["aligned_with"]) == (
        ["narrative"],
        ["tense_relation"],
    )


def test_equal_events_have_numbers_in_the_passage_and_as_options(raw: Path) -> None:
    sample = read(raw, "torque", ("test",))["test"].rows[1]
    assert sample.context == '" It snowed after it rained , " said (1) Ann ; Bo Said (2) so .'
    assert sample.options == ["snowed", "rained", "said (1)", "Said (2)"]
    assert sample.answers == ["snowed", "Said (2)"]


def test_words_that_are_no_event_have_no_number() -> None:
    assert number_repeats(["had", "said", "had", "said"], [0, 1, 1, 1]) == ["had", "said (1)", "had", "said (2)"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"labels": [0, 0, 0, 0, 0, 1',
            '"labels": [1, 0, 0, 0, 0, 1',
            "item 1: answers.labels: .*expected answers among",
        ),
        ('"labels": [0, ', '"labels": [', "item 1: answers.labels: .*expected a list of 15 marks"),
        ('"context": ["@", ', '"context": [1, ', "item 1: context: .*expected a list of texts"),
    ],
)
def test_a_bad_row_is_named(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / _DEV, old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "torque", ("test",))


def test_the_published_files_have_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _DEV).is_file():
        pytest.skip(f"{published_raw} lacks {_DEV}")
    counts = {
        bias: Counter(one.subset for one in read(published_raw, "torque", ("test",), f"bias={bias}")["test"].rows)
        for bias in ("any", "erp", "tense_relation", "narrative", "dependency")
    }
    # The published numbers of conflicting questions, and of the aligned ones that have an answer.
    assert counts == {
        "any": {"conflict": 443, "aligned": 375},
        "erp": {"conflict": 88, "aligned": 575},
        "tense_relation": {"conflict": 243, "aligned": 504},
        "narrative": {"conflict": 140, "aligned": 607},
        "dependency": {"conflict": 68, "aligned": 184},
    }

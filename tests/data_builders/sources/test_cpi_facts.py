"""CF World Facts: the passage's answer against the known one."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.sources.cpi_facts import alternatives
from tests.data_builders.reading import read, replace

_FILE = Path("conflict/cpi-world-facts/world_facts.json")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Washington, D.C.", ["Washington, D.C."]),
        ("Rangoon (Yangon); Naypyidaw (administrative)", ["Rangoon", "Naypyidaw"]),
        ("Oz (old); Oz", ["Oz"]),
        ("(none)", []),
    ],
)
def test_alternatives_are_divided_and_remarks_dropped(answer: str, expected: list[str]) -> None:
    assert alternatives(answer) == expected


def test_the_known_answer_is_the_habit(raw: Path) -> None:
    plain, divided = read(raw, "cpi_facts", ("test",))["test"].rows
    assert (plain.answers, plain.habit, plain.subset, plain.relation) == (["Ulm"], ["Bree"], "conflict", "factual")
    assert "memory_answer" not in plain.meta
    assert divided.habit == ["Oz", "Kansas City"]
    assert divided.meta["memory_answer"] == "Oz (official); Kansas City (old name: Oz)"


def test_a_row_without_a_known_answer_is_bad(raw: Path) -> None:
    replace(raw / _FILE, '"memory_answer": "Bree"', '"memory_answer": "(none)"')
    with pytest.raises(UserError, match=r"item 1: memory_answer: got '\(none\)'; expected an answer outside brackets"):
        read(raw, "cpi_facts", ("test",))


def test_the_published_file_has_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FILE).is_file():
        pytest.skip(f"{published_raw} lacks {_FILE}")
    rows = read(published_raw, "cpi_facts", ("test",))["test"].rows
    assert len(rows) == 313
    assert len({one.question for one in rows}) == 312
    assert sum(one.answers[0] in one.context for one in rows) == 304

"""What the CREPE source makes of procedures: one row for each event and step."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from data_builders.build.suites import SUITES
from data_builders.raw.files import find_files
from data_builders.raw.reader import BadRows
from data_builders.sources import SOURCES
from tests.data_builders.reading import read


def step(text: str) -> dict[str, str]:
    return {"type": "step", "step": text}


def event(text: str, change: str) -> dict[str, str]:
    return {"type": "event", "event": text, "change": change}


HOT = {"type": "entity", "entity": "the kettle", "attribute": "hot", "change": "more likely"}
TEA = {
    "goal": "Make tea",
    "steps": [
        [{"step": "Start."}],  # without a type, as in many published procedures
        [step("Boil the water."), HOT, event("I burn my hand.", "more likely")],
        [step("Wait an hour."), event("I burn my hand.", "less likely"), event("The tea is cold.", "more likely")],
    ],
}


def written(folder: Path, content: Any) -> Path:
    path = folder / "crepe" / "data_dev_v2.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_each_event_is_asked_about_after_each_step(tmp_path: Path) -> None:
    rows = read(written(tmp_path, {"7": TEA}), "crepe", ("dev",))["dev"]
    assert [(s.meta["step"], s.meta["event"], s.answers[0]) for s in rows.rows] == [
        (1, 0, "more likely"),
        (1, 1, "equally likely"),
        (2, 0, "less likely"),
        (2, 1, "more likely"),
    ]
    assert rows.rows_read == 4
    first, last = rows.rows[0], rows.rows[-1]
    assert first.context == "Goal: Make tea\n1. Boil the water."
    assert last.context == "Goal: Make tea\n1. Boil the water.\n2. Wait an hour."
    assert last.question.endswith("The tea is cold.")
    assert (last.format, last.relation, last.refined_context) == ("scq", "causal", None)
    assert last.options == ["more likely", "less likely", "equally likely"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": [[step("Start.")]]}, "item 1: steps: got .*; expected the start and at least one step"),
        ({"goal": " "}, "item 1: goal: got ' '"),
        ({"steps": [[], [step("a"), event("x", "likelier")]]}, r"steps.1.change: got 'likelier'; expected one of"),
        ({"steps": [[], [step("a"), {"type": "state"}]]}, r"steps.1.type: got 'state'"),
        ({"steps": [[], [step("a"), step("b")]]}, "expected exactly one step"),
    ],
)
def test_a_damaged_procedure_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(written(tmp_path, {"7": {**TEA, **change}}), "crepe", ("dev",))


def test_a_damaged_procedure_can_be_skipped(tmp_path: Path) -> None:
    bad = BadRows(skip=True)
    rows = read(written(tmp_path, {"7": {"goal": "Rest"}, "8": TEA}), "crepe", ("dev",), bad=bad)["dev"]
    assert {sample.meta["procedure"] for sample in rows.rows} == {"8"}
    assert [entry["item"] for entry in bad.entries] == [1]


@pytest.mark.parametrize("content", ["[1]", '{"1": {"goal": "x"', '{"1": {}, "1": {}}'])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    (written(tmp_path, {}) / "crepe" / "data_dev_v2.json").write_text(content)
    with pytest.raises(UserError, match=r"data_dev_v2\.json, line 1: "):
        read(tmp_path, "crepe", ("dev",))


def test_no_suite_takes_it() -> None:
    assert all("crepe" not in suite.datasets for suite in SUITES.values())


def test_published_files_give_the_scored_pairs(published_raw: Path) -> None:
    found = read(published_raw, "crepe", ("dev", "test"))
    counts = {split: Counter(sample.answers[0] for sample in rows.rows) for split, rows in found.items()}
    assert counts["dev"] == {"equally likely": 583, "more likely": 86, "less likely": 58}
    assert counts["test"] == {"equally likely": 1_176, "more likely": 230, "less likely": 114}


def test_the_checksums_are_those_of_the_published_files(published_raw: Path) -> None:
    from data_builders.dataset.manifest import describe_file

    for file in find_files(SOURCES["crepe"], ("dev", "test"), published_raw).values():
        described = describe_file(file.file, file.path)
        assert (described["sha256"], described["bytes"]) == (file.file.sha256, file.file.bytes)

"""What the OpenPI2.0 source makes of procedures: one row for each step, entity and attribute that changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from data_builders.build.suites import SUITES
from data_builders.dataset.manifest import describe_file
from data_builders.raw.files import find_files
from data_builders.raw.reader import BadRows
from data_builders.sources import SOURCES
from tests.data_builders.reading import read, steps


def change(attribute: str, before: str, after: str) -> dict[str, Any]:
    return {"attribute": attribute, "before": before, "after": after, "saliency": 0.5}


TEA = {
    "goal": "Brew Tea",
    "steps": ["Heat water in the kettle.", "Pour it over the leaves."],
    "states": [
        {
            "entity": "water | the liquid",
            "answers": {
                "step1": [change("temperature | heat", "cold | cool", "hot"), change("temperature", "cold", "warm")],
                "step2": [change("place", "kettle", "pot")],
            },
        },
        {"entity": "kettle", "answers": {"step1": [change("temperature", "cold", "hot")], "step2": []}},
    ],
}
NAP = {
    "goal": "Nap",
    "steps": ["Lie down."],
    "states": [{"entity": "you", "answers": {"step1": [change("posture", "standing", "lying")]}}],
}


def written(folder: Path, **splits: Any) -> Path:
    for split in ("train", "dev", "test"):
        path = folder / "openpi2" / "v2.0" / f"{split}-ranked.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(splits.get(split, {"9": NAP})), encoding="utf-8")
    return folder


def test_each_change_is_a_question_with_every_accepted_answer(tmp_path: Path) -> None:
    rows = read(written(tmp_path, dev={"4": TEA}), "openpi2", ("dev",))["dev"]
    first, second, last = rows.rows
    assert first.context == "Goal: Brew Tea\n1. Heat water in the kettle."
    assert first.question == "What is the temperature of water before and after the latest step?"
    # The second entry of the same attribute adds its states.
    assert first.answers == ["cold before and hot after", "cool before and hot after", "cold before and warm after"]
    assert second.question.startswith("What is the temperature of kettle")
    assert last.context.endswith("\n2. Pour it over the leaves.")
    assert last.answers == ["kettle before and pot after"]
    assert (last.format, last.relation, last.refined_context) == ("qa", "temporal", None)
    assert [sample.id for sample in rows.rows] == [f"openpi2-dev-4-{number}" for number in range(3)]
    assert rows.rows_read == 4
    assert steps(rows) == {"changes without a name or a state": (4, 4), "changes named twice": (4, 3)}


def test_the_goal_and_the_latest_step_are_evidence_decoded_like_the_context(tmp_path: Path) -> None:
    content = {**TEA, "goal": "Brew Ann&#x27;s Tea"}
    last = read(written(tmp_path, dev={"4": content}), "openpi2", ("dev",))["dev"].rows[-1]
    assert last.meta["evidence"] == ["Goal: Brew Ann's Tea", "2. Pour it over the leaves."]
    assert set(last.meta["evidence"]) <= set(last.context.split("\n"))


def test_a_change_without_a_name_or_a_state_is_left_out(tmp_path: Path) -> None:
    content = copy.deepcopy(TEA)
    content["states"][1]["entity"] = ""
    content["states"][0]["answers"]["step2"][0]["after"] = " "
    rows = read(written(tmp_path, test={"4": content}), "openpi2", ("test",))["test"]
    assert steps(rows)["changes without a name or a state"] == (4, 2)
    assert len(rows.rows) == 1


def test_procedures_of_dev_and_test_are_not_trained_on(tmp_path: Path) -> None:
    shouted = {**NAP, "goal": "NAP"}
    rows = read(written(tmp_path, train={"1": TEA, "2": shouted, "3": NAP}), "openpi2", ("train",))["train"]
    assert {sample.meta["procedure"] for sample in rows.rows} == {"1"}
    assert steps(rows)["procedures of dev and test"] == (3, 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"goal": ""}, "item 1: goal: got ''"),
        ({"steps": []}, "item 1: steps: got .*; expected at least one step"),
        ({"states": {}}, "item 1: states: got .*; expected a list of objects"),
        ({"states": [{"entity": 3, "answers": {}}]}, r"states.0.entity: got 3; expected text"),
        ({"states": [{"entity": "x", "answers": {"step1": []}}]}, r"states.0.answers.step2: .*a list of objects"),
    ],
)
def test_a_damaged_procedure_is_named_or_skipped(tmp_path: Path, damage: dict[str, Any], message: str) -> None:
    folder = written(tmp_path, dev={"4": {**TEA, **damage}, "5": NAP})
    with pytest.raises(UserError, match=message):
        read(folder, "openpi2", ("dev",))
    bad = BadRows(skip=True)
    assert len(read(folder, "openpi2", ("dev",), bad=bad)["dev"].rows) == 1
    assert [entry["item"] for entry in bad.entries] == [1]


@pytest.mark.parametrize("content", ["[1]", '{"1": {"goal": "x"', '{"1": {}, "1": {}}'])
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    (written(tmp_path) / "openpi2" / "v2.0" / "dev-ranked.json").write_text(content)
    with pytest.raises(UserError, match=r"dev-ranked\.json, line 1: "):
        read(tmp_path, "openpi2", ("dev",))


def test_no_suite_takes_it() -> None:
    assert all("openpi2" not in suite.datasets for suite in SUITES.values())


def test_published_files_give_all_their_changes(published_raw: Path) -> None:
    found = read(published_raw, "openpi2", ("dev", "test"))
    assert (found["dev"].rows_read, len(found["dev"].rows)) == (1_324, 1_311)
    assert (found["test"].rows_read, len(found["test"].rows)) == (3_129, 3_091)
    assert len({sample.id for sample in found["test"].rows}) == 3_091


def test_the_checksums_are_those_of_the_published_files(published_raw: Path) -> None:
    source = SOURCES["openpi2"]
    files = [(found.file, found.path) for found in find_files(source, ("dev", "test"), published_raw).values()]
    files += [(file, published_raw / "openpi2" / file.name) for file in source.others]
    assert len(files) == 10
    for file, path in files:
        described = describe_file(file, path)
        assert (described["sha256"], described["bytes"]) == (file.sha256, file.bytes)
        assert file.commit in file.url

"""The official files and files of entity states, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe import gold
from eval.systems.crepe.gold import EQUALLY, LESS, MORE, EntityChange, read_procedures, read_states
from tests.eval.systems.crepe.procedures import GOLD
from tests.eval.systems.files import save


def change(**changes: str) -> dict[str, str]:
    return {"entity": "the kettle", "attribute": "hot", "change": "more likely", **changes}


def read(folder: Path, content: Any) -> Any:
    return read_states(save(folder / "states.json", content), read_procedures(save(folder / "gold.json", GOLD)))


def test_states_are_read_by_procedure_and_step(tmp_path: Path) -> None:
    states = read(tmp_path, {"3": {"2": [change()]}, "5": {}})
    assert states == {"3": [[], [EntityChange("the kettle", "hot", "more likely")], []], "5": [[], []]}


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    procedures = read_procedures(save(tmp_path / "gold.json", GOLD))
    states = {name: [list(changes) for changes in steps] for name, steps in gold.gold_states(procedures).items()}
    path = save(tmp_path / "written.json", gold.write_states(states))
    assert read_states(path, procedures) == states


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"3": {}}, "procedure '5' is missing"),
        ({"3": {}, "5": {}, "9": {}}, "procedure '9' is not in the gold file"),
        ({"3": {"4": []}, "5": {}}, "3: got the steps 4; expected 1 to 3"),
        ({"3": {"x": []}, "5": {}}, "3.x.*: got 'x'"),
        ({"3": {"1": [change(change="hotter")]}, "5": {}}, "3.1.0: .*change is 'hotter'; expected less"),
        ({"3": {"1": [{"change": "more likely"}]}, "5": {}}, "3.1.0.entity: missing"),
        ({"3": [], "5": {}}, r"json: 3: got \[\]"),
    ],
)
def test_a_damaged_file_is_named_with_its_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        ("the kettle", True),
        ("Kettle", True),
        ("hand", True),
        ("the", False),
        ("kett", False),
        ("the hot kettle", False),
    ],
)
def test_an_event_mentions_an_entity_by_its_words(entity: str, found: bool) -> None:
    assert gold.mentions("I burn my hand on a kettle.", entity) is found


def test_at_most_five_states_a_step_of_mentioned_entities_are_shown(tmp_path: Path) -> None:
    procedure = read_procedures(save(tmp_path / "gold.json", GOLD))[0]
    fitting = [EntityChange("kettle", f"a{n}", "more likely") for n in range(8)]
    states = [[EntityChange("the moon", "full", "more likely"), *fitting], [], fitting[:2]]
    shown = gold.fitting_states(procedure, states, 0)
    assert [len(changes) for changes in shown] == [5, 0, 2]
    assert shown[0] == [one for one in fitting if one in shown[0]], "in their order, without the moon"
    assert shown == gold.fitting_states(procedure, states, 0)
    assert any(gold.fitting_states(procedure, states, seed) != shown for seed in range(1, 5))


@pytest.mark.parametrize(
    ("change", "official", "corrected"),
    [
        ("less likely", LESS, LESS),
        ("more likely", MORE, MORE),
        ("equally likely", MORE, EQUALLY),
        ("", MORE, EQUALLY),
        (" Less likely", MORE, LESS),
    ],
)
def test_changes_as_labels(change: str, official: int, corrected: int) -> None:
    assert (gold.official_label(change), gold.corrected_label(change)) == (official, corrected)


@pytest.mark.parametrize(("split", "counts"), [("dev", (42, 285, 144, 165)), ("test", (141, 924, 344, 351))])
def test_published_files_have_their_counts(crepe_raw: Path, split: str, counts: tuple[int, ...]) -> None:
    procedures = read_procedures(crepe_raw / f"data_{split}_v2.json")
    blocks = [block for procedure in procedures for block in procedure.blocks]
    assert (
        len(procedures),
        len(blocks),
        sum(len(block.events) for block in blocks),
        sum(len(block.entities) for block in blocks),
    ) == counts
    texts = json.loads((crepe_raw / f"data_{split}_v2.json").read_text(encoding="utf-8"))
    assert [procedure.id for procedure in procedures] == list(texts)

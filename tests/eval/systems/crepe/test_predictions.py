"""Files of predictions: which dictionaries count, what is refused, and that what is written reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import EntityChange, read_procedures
from eval.systems.crepe.predictions import PredictionFile, read_predictions, write_predictions
from tests.eval.systems.crepe.procedures import BURN, DARK, GOLD, LABELS, event, save, step, with_predictions


def read(
    folder: Path, content: Any, gold: Any = GOLD, read_as: Any = "auto", missing: Any = "error"
) -> PredictionFile:
    procedures = read_procedures(save(folder / "gold.json", gold))
    return read_predictions(save(folder / "p.json", content), procedures, read_as, missing)


def test_marked_predictions_count_and_the_gold_beside_them_does_not(tmp_path: Path) -> None:
    found = read(tmp_path, with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]}))
    assert found.read == "predicted"
    assert found.procedures["5"].official == [[0], [2]]
    assert found.procedures["3"].official == [[0, 0]] * 3


def test_the_gold_file_predicts_itself_unless_it_is_said_to_be_an_output_without_a_change(tmp_path: Path) -> None:
    found = read(tmp_path, GOLD)
    assert (found.read, found.same_events) == ("event", True)
    assert found.procedures["3"].official == LABELS["3"]
    assert read(tmp_path, GOLD, read_as="predicted").procedures["5"].official == [[0], [0]]


def test_a_file_in_the_gold_files_shape_is_read_by_its_events(tmp_path: Path) -> None:
    content = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    found = read(tmp_path, content)
    assert found.read == "event"
    assert found.procedures["5"].official == [[1], [2]]
    assert read(tmp_path, content, read_as="predicted").procedures["5"].official == [[0], [0]]
    assert read(tmp_path, GOLD, read_as="event").procedures["3"].official == LABELS["3"]


def test_gold_that_a_file_carries_is_compared_with_the_gold_file(tmp_path: Path) -> None:
    predicted = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]})
    assert (read(tmp_path, predicted).other_gold, read(tmp_path, predicted).pairs) == (0, 8)
    older = with_predictions(predicted, {("5", 2): [event(DARK, "more likely")], ("3", 2): [event("It rains.", "no")]})
    assert read(tmp_path, older).other_gold == 2, "a label and an event that the gold file has not"
    shaped = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    assert read(tmp_path, shaped).other_gold == 0, "its events are the predictions"


def test_missing_procedures_are_an_error_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks procedure '3' \(1 of 2 are missing\)"):
        read(tmp_path, {"5": GOLD["5"]})
    assert list(read(tmp_path, {"5": GOLD["5"]}, missing="leave_out").procedures) == ["5"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**GOLD, "6": GOLD["5"]}, "procedure '6' is not in the gold file"),
        ({"3": GOLD["5"], "5": GOLD["5"]}, r"procedure '3': has the 2 steps .*; expected the gold file's 3"),
        (
            {"3": {**GOLD["3"], "steps": [[], [step("a"), {"type": "even"}]]}},
            "block 1: type: got 'even'; expected one of",
        ),
        (
            {"3": {**GOLD["3"], "steps": [[], [{"type": "event", "event": BURN}, step("a")]]}},
            "block 1: change: missing",
        ),
        ({"3": {"goal": "x"}}, r"procedure '3', steps: got None; expected a JSON array"),
        ([], r"p\.json: got \[\]; expected a JSON object"),
        ({}, "holds no procedure"),
    ],
)
def test_a_file_that_does_not_fit_is_named_with_its_place(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


def test_a_file_that_is_no_json_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"3": {"goal": "x",\n "goal"')
    with pytest.raises(UserError, match=r"p\.json: not JSON \(line 2, column 8"):
        read_procedures(path)
    path.write_text('{"3": 1, "3": 2}')
    with pytest.raises(UserError, match="the key '3' is given twice"):
        read_procedures(path)
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(UserError, match="not UTF-8"):
        read_procedures(path)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    procedures = read_procedures(save(tmp_path / "gold.json", GOLD))
    labels = {"3": [[1, 2], [0, 0], [2, 0]], "5": [[0], [1]]}
    hot = EntityChange("kettle", "hot", "True")
    text = write_predictions(procedures, labels, {"3": [[hot], [], []], "5": []})
    path = tmp_path / "written.json"
    path.write_text(text, encoding="utf-8")
    found = read_predictions(path, procedures, "auto", "error")
    assert {name: list(map(list, rows.official)) for name, rows in found.procedures.items()} == labels
    written = read_procedures(path)
    assert [block.events for block in written[0].blocks] == [block.events for block in procedures[0].blocks]
    assert {"type": "predicted_entity", "entity": "kettle", "attribute": "hot", "change": "True"} in (
        written[0].raw["steps"][1]
    )
    assert "predicted" not in str(procedures[0].raw), "the gold content is left as it was"


def test_old_predictions_in_the_gold_file_are_not_written_again(tmp_path: Path) -> None:
    gold = with_predictions(GOLD, {("5", 1): [event(DARK, "more likely", "predicted_event")]})
    procedures = read_procedures(save(tmp_path / "gold.json", gold))
    text = write_predictions(procedures, {"3": [[0, 0]] * 3, "5": [[0], [0]]}, {})
    assert "predicted_event" not in text
    path = tmp_path / "written.json"
    path.write_text(text, encoding="utf-8")
    found = read_predictions(path, procedures, "auto", "error")
    assert found.read == "predicted", "what a run wrote is known, also where it predicts no change"
    assert found.procedures["3"].official == [[0, 0]] * 3

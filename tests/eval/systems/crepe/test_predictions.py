"""Files of predictions: which dictionaries count, what is refused, and that what is written reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.systems.crepe.gold import EntityChange, read_procedures
from eval.systems.crepe.predictions import Predictions, read_predictions, write_predictions
from tests.eval.systems.crepe.procedures import DARK, GOLD, LABELS, event, with_predictions
from tests.eval.systems.files import save


def read(folder: Path, content: Any, gold: Any = GOLD, read_as: Any = "auto", missing: Any = "error") -> Predictions:
    procedures = read_procedures(save(folder / "gold.json", gold))
    return read_predictions(save(folder / "p.json", content), procedures, read_as, missing)


def test_marked_predictions_count_and_the_gold_beside_them_does_not(tmp_path: Path) -> None:
    found = read(tmp_path, with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]}))
    assert found.facts["read"] == "predicted"
    assert found.official["5"] == [[0], [2]]
    assert found.official["3"] == [[0, 0]] * 3


def test_the_gold_file_predicts_itself_unless_it_is_said_to_be_an_output_without_a_change(tmp_path: Path) -> None:
    found = read(tmp_path, GOLD)
    assert found.facts["read"] == "event"
    assert "they score as perfect" in found.notes[0]
    assert found.official["3"] == LABELS["3"]
    assert read(tmp_path, GOLD, read_as="predicted").official["5"] == [[0], [0]]


def test_a_file_in_the_gold_files_shape_is_read_by_its_events(tmp_path: Path) -> None:
    content = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    found = read(tmp_path, content)
    assert found.facts["read"] == "event"
    assert found.official["5"] == [[1], [2]]
    assert read(tmp_path, content, read_as="predicted").official["5"] == [[0], [0]]
    assert read(tmp_path, GOLD, read_as="event").official["3"] == LABELS["3"]


def test_gold_that_a_file_carries_is_compared_with_the_gold_file(tmp_path: Path) -> None:
    predicted = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]})
    assert read(tmp_path, predicted).facts["other_gold"] == 0
    older = with_predictions(predicted, {("5", 2): [event(DARK, "more likely")], ("3", 2): [event("It rains.", "no")]})
    assert read(tmp_path, older).facts["other_gold"] == 2, "a label and an event that the gold file has not"
    shaped = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    assert read(tmp_path, shaped).facts["other_gold"] == 0, "its events are the predictions"


def test_missing_procedures_can_be_left_out(tmp_path: Path) -> None:
    assert list(read(tmp_path, {"5": GOLD["5"]}, missing="leave_out").official) == ["5"]


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    procedures = read_procedures(save(tmp_path / "gold.json", GOLD))
    labels = {"3": [[1, 2], [0, 0], [2, 0]], "5": [[0], [1]]}
    hot = EntityChange("kettle", "hot", "True")
    text = write_predictions(procedures, labels, {"3": [[hot], [], []], "5": []})
    path = save(tmp_path / "written.json", text)
    found = read_predictions(path, procedures, "auto", "error")
    assert found.official == labels
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
    path = save(tmp_path / "written.json", text)
    found = read_predictions(path, procedures, "auto", "error")
    assert found.facts["read"] == "predicted", "what a run wrote is known, also where it predicts no change"
    assert found.official["3"] == [[0, 0]] * 3

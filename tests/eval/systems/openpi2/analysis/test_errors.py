"""Classes of errors in schemata, by people and by the gold file, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import output_of, refusal_of
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import expanded

# Step 1 of the tea changes heat and place of the water and the kettle's heat, step 2 the tea alone.
ANALYSIS = {
    "1": [
        {
            "the liquid": [["heat", "1"], ["size", "2"], ["warmth", "1"], ["", 100]],
            "tea": [["existence", "2"]],
            "kettle": [["temperature", 100]],
        },
        {"water": [["place", "3"], [" colour", 100]], "tea": [["existence", ""]]},
        "annotated",
    ]
}
LINES = [
    ("1", "the liquid", "heat", "correct"),
    ("1", "the liquid", "size", "no change"),
    ("1", "the liquid", "warmth", "correct"),
    ("1", "tea", "existence", "no change"),
    ("1", "kettle", "temperature", "missing"),
    ("2", "water", "place", "nonsense"),
    ("2", "water", "colour", "missing"),
    ("2", "tea", "existence", "no label"),
]
KEYS = ("step", "entity", "attribute", "label")
NUMBERS = {"correct": 1, "no change": 2, "nonsense": "3", "missing": "100", "no label": ""}  # as in CSV, or unquoted


def arguments(folder: Path, predictions: Any, task: str = "errors") -> tuple[Any, ...]:
    name = "predictions.jsonl" if isinstance(predictions, list) else "predictions.json"
    gold = save(folder / "gold.json", expanded())
    return ("score", "openpi2", save(folder / name, predictions), "--gold", gold, "--set", f"task={task}")


def scored(*call: Any) -> Any:
    return json.loads(output_of(*call, "--json", "-"))


@pytest.mark.parametrize(
    "predictions",
    [
        ANALYSIS,
        [{"procedure": "1", **dict(zip(KEYS, line, strict=True))} for line in LINES],
        [{"procedure": "1", **dict(zip(KEYS, (*line[:3], NUMBERS[line[3]]), strict=True))} for line in LINES],
    ],
)
def test_labels_are_counted_and_looked_up_in_the_gold_file(tmp_path: Path, predictions: Any) -> None:
    found = scored(*arguments(tmp_path, predictions))["errors"]
    places = {name: (own["this step"], own["another step"], own["no cluster"]) for name, own in found.items()}
    assert places == {
        "correct": (2, 0, 0),
        "no change": (0, 1, 1),
        "nonsense": (0, 1, 0),
        "missing": (1, 0, 1),
        "no label": (1, 0, 0),
    }
    assert {name: own["share"] for name, own in found.items()} == pytest.approx(
        {"correct": 2 / 5, "no change": 2 / 5, "nonsense": 1 / 5, "missing": 2 / 5, "no label": 1 / 5}
    )
    assert "Errors by people's labels (1 of 2 procedures, with expansion)" in output_of(*arguments(tmp_path, ANALYSIS))


def test_a_label_that_is_none_and_a_step_too_few_are_refused(tmp_path: Path) -> None:
    bad = {"1": [{"tea": [["colour", "4"]]}, {}, "annotated"]}
    assert "'colour' of 'tea' has the label '4'; expected one of '1' (correct)" in refusal_of(
        *arguments(tmp_path, bad)
    )
    schema = {"1": [{"tea": ["colour"]}, {}]}
    assert "predictions.json: 1.0.tea.0: got 'colour'" in refusal_of(*arguments(tmp_path, schema))
    assert "got 1 items; expected one item for each of the 2 steps" in refusal_of(*arguments(tmp_path, {"1": [{}]}))


def test_predictions_without_labels_are_looked_up_too(tmp_path: Path) -> None:
    schema = {"1": [{"water": ["warmth", "size"], "tea": ["existence"]}, {}], "2": [{"you": ["posture"]}]}
    found = scored(*arguments(tmp_path, schema, "schemata"))["schemata"]
    # Without paraphrases the warmth of water is in no cluster. Gold has four changes of the tea and one of the nap.
    assert found["errors"] == {
        "plain": {"this step": 1, "another step": 1, "no cluster": 2, "missing": 4},
        "expanded": {"this step": 2, "another step": 1, "no cluster": 1, "missing": 3},
    }

"""Scores by the authors' labels, by hand: logical relation and entity of interest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.breakdowns import interest_table, read_labels, score_by_interest, score_by_relation
from eval.systems.crepe.gold import read_procedures
from tests.command import output_of
from tests.eval.systems.crepe.procedures import BURN, COLD, DARK, GOLD, event, with_predictions
from tests.eval.systems.files import save

MENTIONED = {BURN: "True", COLD: "True", DARK: "False"}
ALONE = {BURN: "True", COLD: "False", DARK: "False"}


def scored(folder: Path, changes: Any, *given: str) -> tuple[dict[str, Any], str]:
    """Return the scores of predicted changes, and what is printed."""
    files = save(folder / "predictions.json", with_predictions(GOLD, changes)), save(folder / "gold.json", GOLD)
    call = ("score", "crepe", "--predictions", files[0], "--gold", files[1], *given)
    return json.loads(output_of(*call, "--json", "-")), output_of(*call)


def related(text: str, change: str, relation: str) -> dict[str, Any]:
    return {**event(text, change, "predicted_event"), "event_entity_inference": ["kettle", "hot", relation]}


def test_each_relation_is_scored_over_the_changes_that_have_it(tmp_path: Path) -> None:
    changes = {
        ("3", 1): [related(BURN, "more likely", "entailment"), related(COLD, "less likely", "contradiction")],
        ("3", 2): [related(BURN, "more likely", "entailment")],
        ("5", 1): [related(DARK, "less likely", "contradiction")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    scores, printed = scored(tmp_path, changes)
    found = scores["by_relation"]
    # (more, more), (equally, more): F1 of more 2·1/(1 + 2), of equally 0.
    assert found["entailment"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    # (equally, less), (less, less): likewise.
    assert found["contradiction"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    assert found["unrelated"] == {"macro_f1": None, "pairs": 0}
    assert found["unlabelled_changes"] == 1
    assert "By logical relation (predicted changes without one: 1)" in printed


def test_predictions_without_labels_have_no_such_scores_and_another_label_is_refused(tmp_path: Path) -> None:
    gold = read_procedures(save(tmp_path / "gold.json", GOLD))
    assert score_by_relation(gold, gold) is None
    odd = with_predictions(GOLD, {("5", 1): [related(DARK, "less likely", "implied")]})
    with pytest.raises(UserError, match=r"got .*'implied'.*; expected an entity, an attribute and one of entailment"):
        score_by_relation(gold, read_procedures(save(tmp_path / "odd.json", odd)))


def labelled() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(GOLD))
    for procedure in content.values():
        for row in (row for block in procedure["steps"] for row in block if row.get("type") == "event"):
            row |= {"EOI": MENTIONED[row["event"]], "Singular": ALONE[row["event"]]}
    return content


def test_pairs_count_once_and_officially_once_for_each_dictionary(tmp_path: Path) -> None:
    # Of the lamp: right at the first step, wrong at the second.
    changes = {
        ("5", 1): [event(DARK, "less likely", "predicted_event")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    scores, printed = scored(tmp_path, changes, "--set", f"eoi={save(tmp_path / 'eoi.json', labelled())}")
    found = scores["by_interest"]
    lamp = found["entity of interest not mentioned"]
    # Pairs: (less, less), (equally, more): F1 of 1, 0 and 0.
    assert (lamp["pairs"], lamp["macro_f1"]) == (2, pytest.approx(1 / 3))
    # Dictionaries: step, event, prediction | step, prediction: (equally, equally), (less, equally), (less, less) |
    # (equally, equally), (equally, more): F1 of equally 2·2/(3 + 3), of less 2·1/(2 + 1), of more 0.
    assert lamp["official_macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 3)
    assert found["entity of interest mentioned"]["pairs"] == 6
    assert found["answerable by the step"]["pairs"] == 3
    assert found["unlabelled_pairs"] == 0
    assert "By entity of interest" in printed


def test_events_without_labels_are_counted(tmp_path: Path) -> None:
    procedures = read_procedures(save(tmp_path / "gold.json", GOLD))
    labels = read_labels(save(tmp_path / "eoi.json", {"5": labelled()["5"]}))
    official = {p.id: [[0] * len(p.events)] * len(p.blocks) for p in procedures}
    found = score_by_interest(labels, procedures, official, ())
    assert found["unlabelled_pairs"] == 6
    assert found["entity of interest mentioned"] == {"macro_f1": None, "official_macro_f1": None, "pairs": 0}
    assert "6 pairs are unlabelled" in interest_table(found).markdown()


def test_a_file_without_the_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no EOI or Singular; expected 'True' or 'False'"):
        read_labels(save(tmp_path / "eoi.json", GOLD))

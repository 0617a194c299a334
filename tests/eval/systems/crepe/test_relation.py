"""Scores by logical relation, by hand, of predictions that carry the authors' labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import read_procedures
from eval.systems.crepe.relation import score_by_relation
from tests.command import d2e
from tests.eval.systems.crepe.procedures import BURN, COLD, DARK, GOLD, event, save, with_predictions


def labelled(text: str, change: str, relation: str) -> dict[str, Any]:
    return {**event(text, change, "predicted_event"), "event_entity_inference": ["kettle", "hot", relation]}


def test_each_relation_is_scored_over_the_changes_that_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        ("3", 1): [labelled(BURN, "more likely", "entailment"), labelled(COLD, "less likely", "contradiction")],
        ("3", 2): [labelled(BURN, "more likely", "entailment")],
        ("5", 1): [labelled(DARK, "less likely", "contradiction")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    gold = save(tmp_path / "gold.json", GOLD)
    predictions = save(tmp_path / "predictions.json", with_predictions(GOLD, changes))
    call = ("score", "crepe", "--predictions", predictions, "--gold", gold)
    assert d2e(*call, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)["by_relation"]
    # (more, more), (equally, more): F1 of more 2·1/(1 + 2), of equally 0.
    assert found["entailment"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    # (equally, less), (less, less): likewise.
    assert found["contradiction"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    assert found["unrelated"] == {"macro_f1": None, "pairs": 0}
    assert found["unlabelled_changes"] == 1
    assert d2e(*call) == 0
    assert "By logical relation (predicted changes without one: 1)" in capsys.readouterr().out


def test_predictions_without_labels_have_no_such_scores_and_another_label_is_refused(tmp_path: Path) -> None:
    gold = read_procedures(save(tmp_path / "gold.json", GOLD))
    assert score_by_relation(gold, gold) is None
    odd = with_predictions(GOLD, {("5", 1): [labelled(DARK, "less likely", "implied")]})
    with pytest.raises(UserError, match=r"got .*'implied'.*; expected an entity, an attribute and one of entailment"):
        score_by_relation(gold, read_procedures(save(tmp_path / "odd.json", odd)))

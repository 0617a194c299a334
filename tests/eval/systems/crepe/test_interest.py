"""Scores by entity of interest, by hand and as the official script counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import read_procedures
from eval.systems.crepe.interest import interest_table, read_labels, score_by_interest
from tests.command import d2e
from tests.eval.systems.crepe.procedures import BURN, COLD, DARK, GOLD, event, save, with_predictions

MENTIONED = {BURN: "True", COLD: "True", DARK: "False"}
ALONE = {BURN: "True", COLD: "False", DARK: "False"}


def labelled() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(GOLD))
    for procedure in content.values():
        for row in (row for block in procedure["steps"] for row in block if row.get("type") == "event"):
            row |= {"EOI": MENTIONED[row["event"]], "Singular": ALONE[row["event"]]}
    return content


def test_pairs_count_once_and_officially_once_for_each_dictionary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = save(tmp_path / "gold.json", GOLD)
    # Of the lamp: right at the first step, wrong at the second.
    changes = {
        ("5", 1): [event(DARK, "less likely", "predicted_event")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    predictions = save(tmp_path / "predictions.json", with_predictions(GOLD, changes))
    eoi = save(tmp_path / "eoi.json", labelled())
    call = ("score", "crepe", "--predictions", predictions, "--gold", gold, "--set", f"eoi={eoi}")
    assert d2e(*call, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)["by_interest"]
    lamp = found["entity of interest not mentioned"]
    # Pairs: (less, less), (equally, more): F1 of 1, 0 and 0.
    assert (lamp["pairs"], lamp["macro_f1"]) == (2, pytest.approx(1 / 3))
    # Dictionaries: step, event, prediction | step, prediction: (equally, equally), (less, equally), (less, less) |
    # (equally, equally), (equally, more): F1 of equally 2·2/(3 + 3), of less 2·1/(2 + 1), of more 0.
    assert lamp["official_macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 3)
    assert found["entity of interest mentioned"]["pairs"] == 6
    assert found["answerable by the step"]["pairs"] == 3
    assert found["unlabelled_pairs"] == 0
    assert d2e(*call) == 0
    assert "By entity of interest" in capsys.readouterr().out


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

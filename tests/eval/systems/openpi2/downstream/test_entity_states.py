"""Predicted entity states: which are salient, how many there are, and as the CREPE benchmark reads them."""

from __future__ import annotations

import json

from eval.systems.openpi2.downstream.entity_states import StateChange, crepe_entities_file, entities_a_step, salient

CHANGES = {
    "1": [
        [StateChange("pan", "heat", "cold", "hot", 5), StateChange("room", "noise", "low", "high", 2)],
        [StateChange("pan", "heat", "hot", "hot", 4)],
    ]
}


def test_what_is_salient_enough_is_kept() -> None:
    assert salient(CHANGES, 4) == {"1": [CHANGES["1"][0][:1], CHANGES["1"][1]]}
    assert salient({"1": [[StateChange("pan", "heat", "cold", "hot")]]}, 0) == {"1": [[]]}, "salience was not asked"


def test_entities_of_a_step_are_counted_once() -> None:
    assert entities_a_step(CHANGES) == 1.5
    assert entities_a_step({"1": [[*CHANGES["1"][0], StateChange("pan", "size", "small", "big")]]}) == 2
    assert entities_a_step({}) == 0


def test_a_state_that_stays_is_not_less_likely() -> None:
    rows = json.loads(crepe_entities_file(CHANGES))["1"]["2"]
    assert rows == [{"entity": "pan", "attribute": "hot", "change": "more likely"}]

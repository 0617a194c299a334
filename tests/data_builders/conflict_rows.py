"""Raw files of the knowledge-conflict datasets, with rows written for the tests in the real formats."""

from __future__ import annotations

import json
from typing import Any


def matres_row(text: str, first: str, second: str, label: int) -> dict[str, Any]:
    return {"text": text, "e1": first, "e2": second, "labels": [label]}


def matres_features(tokens: int, first: int, second: int, label: int) -> dict[str, Any]:
    """What the publishers' models read: token ids, all but the events' masked, and the places of the events."""
    ids = [488 if place in (first, second) else 67 for place in range(tokens)]
    return {
        "input_ids": ids,
        "event_pos": [first, second],
        "event_pos_end": [first + 1, second + 1],
        "event_pair": [[1, 2]],
        "labels": [label],
    }


# In the first text "said" stands three times, and "agr" is how the publishers cut "agreed" off.
_TALKS = "[CLS] Ada said no, Ben said.[SEP]It rained.[SEP] Later Cy said that they had agreed.[SEP]"
_FIRE = "The barn burned after lightning struck.[SEP]"  # some texts lack the mark of the start
MATRES = [
    matres_row(_TALKS, "said", "said", 0),
    matres_row(_TALKS, "said", "agr", 1),
    matres_row(_FIRE, "burned", "struck", 1),
    matres_row(_FIRE, "burned", "struck", 3),
]
MATRES_FEATURES = [
    matres_features(22, 6, 15, 0),
    matres_features(22, 15, 19, 1),
    matres_features(8, 2, 5, 1),
    matres_features(8, 2, 5, 3),
]
MATRES_OFFSETS = [[23, 58], [58, 77], [9, 32], [9, 32]]
_EVENT_TEMPORAL = "conflict/event-temporal"

# Path in the raw folder → content.
CONFLICT_FILES: dict[str, str | bytes] = {
    **{
        f"{_EVENT_TEMPORAL}/matres/{split}_text_features_matres.json": json.dumps(MATRES)
        for split in ("train", "valid", "test")
    },
    **{
        f"{_EVENT_TEMPORAL}/matres/{name}.json": json.dumps(MATRES_FEATURES)
        for name in ("train_features_matres_event_only", "valid_features_matres_event_only", "test_features_matres")
    },
}
MATRES_TABLE = json.dumps(dict.fromkeys(("train", "valid", "test"), MATRES_OFFSETS))

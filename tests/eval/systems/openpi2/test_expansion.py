"""Expansion: paraphrases of clusters, and the file that is scored against."""

from __future__ import annotations

import json
from pathlib import Path

from eval.run.task import Conversation
from eval.systems.openpi2.system import OPENPI2
from eval.systems.system import parse_options
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import run, save_official


def test_expansion_joins_new_names_into_a_file_to_score_against(tmp_path: Path) -> None:
    def name_more(name: str, chat: Conversation) -> str:
        if chat.id == "1/kettle":
            return "['The Kettle', 'pot']" if name.endswith("run1") else "['pot', 'urn']"
        return "None"

    data = save_official(tmp_path)
    result, asker = run(data, name_more, "task=expansion", "expansion_runs=2")
    assert len(asker.asked["expansion-run1"]) == 4 + 5
    cluster = json.loads(result.files["expanded.json"])["1"]["clusters"]["kettle"]
    assert cluster["entity_overgenerate"] == ["pot", "urn"]
    assert cluster["entity_cluster_combined"] == ["kettle", "pot", "urn"]
    # The fixture's file has the paraphrases H2O and pot of entities.
    assert result.scores["expansion"]["entities"] == {
        "clusters": 4,
        "paraphrases": 2,
        "in_official": 0.5,
        "of_official": 0.5,
    }
    gold = save(tmp_path / "own.json", result.files["expanded.json"])
    predictions = save(tmp_path / "p.json", {"1": [{"urn": ["temperature"]}, {}]})
    options = parse_options(OPENPI2.score_options, [], "openpi2")
    official = OPENPI2.score(predictions, gold, options).scores["schemata"]["official"]
    assert official["expanded"]["entities_global"]["gold_found"] == 1
    assert official["plain"]["entities_global"]["gold_found"] == 0

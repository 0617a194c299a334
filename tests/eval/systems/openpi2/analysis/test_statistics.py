"""Statistics of a gold file: the small one counted by hand, the published one as the paper gives them."""

from __future__ import annotations

from pathlib import Path

from eval.systems.openpi2.analysis.statistics import gold_statistics
from eval.systems.openpi2.gold import EXPANDED, read_clustered
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import clustered, expanded


def test_statistics_of_the_gold_file(tmp_path: Path) -> None:
    found, table = gold_statistics(read_clustered(save(tmp_path / "gold.json", expanded())))
    assert (found["procedures"], found["steps"], found["entity_step_pairs"], found["changes"]) == (2, 3, 4, 5)
    # Names of entities: water, the liquid, H2O; kettle, pot; tea; you.
    assert found["entity_clusters"] == {"count": 4, "mentions": 5 / 4, "paraphrases": 2 / 4, "names": 7 / 4}
    assert found["attribute_clusters"]["count"] == 5
    assert "entity clusters" in table.terminal()
    plain, _ = gold_statistics(read_clustered(save(tmp_path / "plain.json", clustered())))
    assert plain["entity_clusters"] == {"count": 4, "mentions": 5 / 4, "paraphrases": None, "names": None}


def test_published_statistics(published_raw: Path) -> None:
    found, _ = gold_statistics(read_clustered(published_raw / "openpi2" / "v2.0" / EXPANDED))
    entities, attributes = found["entity_clusters"], found["attribute_clusters"]
    assert (entities["count"], attributes["count"]) == (356, 1_068)
    means = (entities["names"], entities["paraphrases"], attributes["paraphrases"])
    assert [round(value, 1) for value in means] == [7.6, 5.5, 3.3]

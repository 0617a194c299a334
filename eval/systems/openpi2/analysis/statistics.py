"""Statistics of a gold file as in section 5 of the paper: procedures, clusters and their names, changes.

The paper gives 3,240 canonical attributes; the published file has 1,068 clusters. The paper's own means fit 1,068:
3.3 paraphrases are 3,542 / 1,068, and 3.0 mentions are 3,240 / 1,068. So 3,240 is probably a number of mentions of an
earlier file; the published one has 1,145 mentions, and 4,687 names with paraphrases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.util.table import Table
from eval.systems.openpi2.gold import Names, Procedures
from eval.systems.openpi2.metrics import mean


def gold_statistics(gold: Procedures) -> tuple[dict[str, Any], Table]:
    """Return the counts of a gold file, and a table of them."""
    clusters = [cluster for one in gold.values() for cluster in one.clusters.values()]
    changed = [step for one in gold.values() for states in one.states for step in states.steps if step]
    found = {
        "procedures": len(gold),
        "steps": sum(len(one.steps) for one in gold.values()),
        "entity_clusters": _names([cluster.names for cluster in clusters]),
        "attribute_clusters": _names([names for cluster in clusters for names in cluster.attributes.values()]),
        "entity_step_pairs": len(changed),
        "changes": sum(map(len, changed)),
    }
    rows = []
    for name, value in found.items():
        count, *means = value.values() if isinstance(value, dict) else (value, None, None, None)
        cells = [None if one is None else f"{one:.1f}" for one in means]
        rows.append((name.replace("_", " "), count, *cells))
    columns = ("of the gold file", "n", "mentions", "paraphrases", "names, both")
    return found, Table.of(columns, rows, "The gold file; mean numbers of names of a cluster")


def _names(clusters: Sequence[Names]) -> dict[str, Any]:
    """Return the number of clusters and their mean numbers of names; no paraphrases in a file without expansion."""
    expanded = any(names.expanded is not None for names in clusters)
    more = [set(names.of(True)) - set(names.mentions) for names in clusters]
    return {
        "count": len(clusters),
        "mentions": mean(len(names.mentions) for names in clusters),
        "paraphrases": mean(map(len, more)) if expanded else None,
        "names": mean(len(names.of(True)) for names in clusters) if expanded else None,
    }

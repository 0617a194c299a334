"""Predicted clusters against labelled ones: exact match of sets.

Predicted names that the labels lack are dropped first. Officially "recall" is the share of predicted clusters that are
gold ones over the number of *gold* clusters, and "precision" the share of gold clusters that were predicted over the
number of *predicted* ones; the two matched counts differ only where a cluster is there twice, but the names are
swapped. The corrected figures have the usual names, drop clusters that are empty, and count each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eval.systems.openpi2.cluster_gold import Groups
from eval.systems.openpi2.figures import Figures


@dataclass
class ClusterScores:
    """Official and corrected figures.

    Attributes:
        official: its `precision` is officially called so, likewise its `recall`.
    """

    official: Figures
    corrected: Figures


def score_entity_clusters(gold: Mapping[str, Groups], predictions: Mapping[str, Groups]) -> ClusterScores:
    """Clusters of entities, of all procedures together."""
    return _score((gold[key], groups) for key, groups in predictions.items())


def score_attribute_clusters(
    gold: Mapping[str, Mapping[str, Groups]], predictions: Mapping[str, Mapping[str, Groups]]
) -> ClusterScores:
    """Clusters of attributes; entities with one gold cluster are skipped."""
    return _score(
        (gold[key][entity], groups)
        for key, entities in predictions.items()
        for entity, groups in entities.items()
        if len(gold[key][entity]) > 1
    )


def _score(pairs: Iterable[tuple[Groups, Groups]]) -> ClusterScores:
    official, corrected = Figures(), Figures()
    for gold, raw in pairs:
        known = {name for group in gold for name in group}
        predicted = [tuple(name for name in group if name in known) for group in raw]
        wanted, given = [set(group) for group in gold], [set(group) for group in predicted]
        # What is officially "precision" has gold clusters above and predicted ones below.
        official.predicted += len(predicted)
        official.predicted_right += sum(_found(group, predicted) for group in gold)
        official.gold += len(gold)
        official.gold_found += sum(_found(group, gold) for group in predicted)
        distinct = {frozenset(group) for group in given if group}
        right = len(distinct & {frozenset(group) for group in wanted})
        corrected.predicted += len(distinct)
        corrected.predicted_right += right
        corrected.gold += len({frozenset(group) for group in wanted})
        corrected.gold_found += right
    return ClusterScores(official, corrected)


def _found(group: tuple[str, ...], others: Iterable[tuple[str, ...]]) -> bool:
    # As officially: as many names, each of them in the other.
    return any(len(group) == len(other) and all(name in other for name in group) for other in others)

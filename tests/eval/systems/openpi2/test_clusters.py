"""Clusters: aggregation of several answers, and scores with the official names and the usual ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.run.task import Conversation
from eval.systems.openpi2 import clustering
from eval.systems.openpi2.clustering import read_gold_groups, read_predicted_groups, score_clusters
from eval.systems.openpi2.clusters import ATTRIBUTE_GOLD, ATTRIBUTE_INPUT, ENTITY_GOLD, ENTITY_INPUT
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import rescored, run


@pytest.mark.parametrize(
    ("reply", "groups"),
    [
        ("The groups are:\n- ['a', \"b's\"]\n- ['c']", [("a", "b's"), ("c",)]),
        ("['a', 'b'],\n['c'", [("a", "b"), ("c",)]),
        ("- ['a', 'b", [("a", "b")]),
        ("- [a, b]\nnothing\n- [1, 2]\n- []", []),
    ],
)
def test_groups_are_the_lists_of_a_reply(reply: str, groups: list[tuple[str, ...]]) -> None:
    assert clustering.parse_groups(reply) == groups


@pytest.mark.parametrize(
    ("names", "answers", "leftovers", "clusters"),
    [
        # The paper's example: (pan, cookware, container) four times, (pan, pot) once.
        (
            ["pan", "pot", "cookware", "container"],
            [[("pan", "cookware", "container"), ("pot",)]] * 4 + [[("pan", "pot"), ("cookware", "container")]],
            "apart",
            [["pan", "cookware", "container"], ["pot"]],
        ),
        # Order does not matter, and a group with another name is skipped.
        (
            ["a", "b", "c"],
            [[("b", "a")], [("a", "b")], [("a",), ("b",)], [("a", "lid")]],
            "apart",
            [["b", "a"], ["c"]],
        ),
        (["a", "b", "c"], [[("a",)]], "together", [["a"], ["b", "c"]]),
        (["a", "b", "c"], [[("a",)]], "apart", [["a"], ["b"], ["c"]]),
        ([], [[("a",)]], "together", []),
    ],
)
def test_the_most_frequent_group_is_taken_first(names: Any, answers: Any, leftovers: str, clusters: Any) -> None:
    assert clustering.aggregate(names, answers, leftovers=leftovers) == clusters


def test_names_that_differ_by_article_or_plural_are_one_before_asking() -> None:
    merged = clustering.merge_alike(["the berries", "Berry", "glass", "a glass", "eggs", "egg", "bus", "bu"])
    assert merged == {
        "the berries": ["the berries", "Berry"],
        "glass": ["glass", "a glass"],
        "eggs": ["eggs"],  # too short for a plural, as officially
        "egg": ["egg"],
        "bus": ["bus"],
        "bu": ["bu"],
    }
    assert clustering.spread([["glass", "egg"]], merged) == [["glass", "a glass", "egg"]]


GOLD = {"1": {"": [("pan", "skillet"), ("egg",), ("salt",)]}}


@pytest.mark.parametrize(
    ("predicted", "official", "corrected"),
    [
        # Names without a label are dropped, so (oil) is an empty cluster, which officially still counts.
        ([("skillet", "pan", "spatula"), ("egg",), ("salt", "pepper"), ("oil",)], (3 / 3, 3 / 4), (1, 1)),
        ([("pan",), ("skillet",), ("egg", "salt"), ("egg",)], (1 / 3, 1 / 4), (1 / 3, 1 / 4)),
        # A cluster given twice is officially right twice.
        ([("egg",), ("egg",)], (2 / 3, 1 / 2), (1 / 3, 1)),
    ],
)
def test_officially_the_names_of_precision_and_recall_are_swapped(
    predicted: Any, official: tuple[float, float], corrected: tuple[float, float]
) -> None:
    scores = score_clusters(GOLD, {"1": {"": predicted}})
    assert (scores.official.recall, scores.official.precision) == official
    assert (scores.corrected.recall, scores.corrected.precision) == corrected


def test_entities_with_one_gold_cluster_are_skipped() -> None:
    gold = {"1": {"pan": (("heat", "warmth"), ("place",)), "egg": (("size",),)}}
    predicted = {"1": {"pan": (("heat", "warmth"), ("place",)), "egg": (("size",), ("wrong",))}}
    scores = score_clusters(gold, predicted)
    assert (scores.official.f1, scores.official.gold, scores.corrected.f1) == (1, 2, 1)


def test_published_labels_scored_against_themselves(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0" / "cluster_mini"
    entities = read_gold_groups(folder / ENTITY_GOLD)
    attributes = read_gold_groups(folder / ATTRIBUTE_GOLD)
    assert len(entities) == len(attributes) == len(clustering.read_to_cluster(folder / ENTITY_INPUT)) == 10
    assert score_clusters(entities, entities).corrected.f1 == 1
    found = score_clusters(attributes, attributes)
    assert (found.official.f1, found.corrected.f1) == (1, 1)


def test_clusters_are_asked_several_times_with_seeds_of_their_own(tmp_path: Path) -> None:
    base = {"goal": "Fry", "steps": ["Heat the pan."]}
    names = ["pan", "skillet", "the pan", "egg"]
    attributes = {"pan | skillet": ["heat | warmth", "place"], "egg": ["size | volume"], "oil": []}
    files = {
        ENTITY_INPUT: {"1": base | {"entities": [], "entities_flattened": names}},
        ENTITY_GOLD: {"1": base | {"entities": [["pan", "the pan", "skillet"], ["egg"]]}},
        ATTRIBUTE_INPUT: {"1": base | {"entity_attr_dict": attributes}},
        ATTRIBUTE_GOLD: {"1": base | {"entity_attr_dict": attributes}},
    }
    for name, content in files.items():
        save(tmp_path / "cluster_mini" / name, content)

    concise: list[str] = []

    def group(name: str, chat: Conversation) -> str:
        if "heat of pan" in chat.messages[-1]["content"]:
            concise.append(chat.messages[-1]["content"])
            assert "- ['fullness of hose', 'content of hose', 'volume of hose']" in chat.messages[3]["content"]
            return "The groups are:\n- ['warmth of pan', 'heat of pan']\n- ['place of pan']"
        if name.startswith("attribute"):
            assert chat.id == "1/pan | skillet", "one entry is one cluster and is not asked about"
            return "The groups are:\n- ['heat', 'warmth']\n- ['place']"
        return "- ['pan', 'egg']" if name.endswith("run1") else "- ['skillet', 'pan']\n- ['egg']"

    result, asker = run(tmp_path, group, "task=clusters", "repeats=2", "entity_runs=3", "attribute_runs=2")
    assert result.scores["entities_cluster_f1"] == result.scores["attributes_cluster_f1"] == 1
    assert len(asker.asked) == 2 * 3 + 2
    entity_passes = [value for name, value in asker.sampling.items() if name.startswith("entity")]
    assert entity_passes == [(0.7, seed) for seed in range(6)]
    for file, gold, task in (
        ("entity_clusters_1.json", ENTITY_GOLD, "entity_clusters"),
        ("attribute_clusters.json", ATTRIBUTE_GOLD, "attribute_clusters"),
    ):
        again = rescored(tmp_path, result, file, tmp_path / "cluster_mini" / gold, task)
        assert [value for name, value in again.items() if name.endswith("f1")] == [1]
    result, _ = run(tmp_path, group, "task=clusters", "attribute_form=concise", "attribute_runs=1", "entity_runs=3")
    assert "'heat of pan', 'warmth of pan', 'place of pan'" in concise[0]
    assert result.scores["attributes_cluster_f1"] == 1, "what the form adds is left out again"


def test_concise_predictions_are_read_without_what_the_form_adds(tmp_path: Path) -> None:
    published = {"1": {"pan | skillet": {"heat of pan": ["warmth of pan"], "place of pan": ["place of pan"]}}}
    path = save(tmp_path / "p.json", published)
    gold = {"1": {"pan | skillet": [("heat", "warmth"), ("place",)]}}
    assert read_predicted_groups(path, gold, "attributes", "concise") == gold
    assert score_clusters(gold, read_predicted_groups(path, gold, "attributes", "concise")).official.f1 == 1
    assert score_clusters(gold, read_predicted_groups(path, gold, "attributes")).official.f1 == 0, "as the evaluator"

"""The official files: their three forms, their counts, and what is said about damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    RANKED,
    Change,
    has_expansion,
    normalise,
    read_clustered,
    read_procedures,
)
from eval.systems.openpi2.states import States
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import clustered, expanded, judged, ranked


def test_the_three_forms_have_one_shape(tmp_path: Path) -> None:
    plain, with_paraphrases, mentions = (
        read_procedures(save(tmp_path / f"{number}.json", content))
        for number, content in enumerate((clustered(), expanded(), ranked()))
    )
    assert plain["1"].states == with_paraphrases["1"].states
    assert plain["1"].states[0].steps[0][0] == Change(attribute="temperature", before=("cold", "cool"), after=("hot",))
    assert mentions["1"].states[0].entity == "water | the liquid"
    assert not mentions["1"].clusters
    assert (has_expansion(plain), has_expansion(with_paraphrases), has_expansion(mentions)) == (False, True, False)
    assert with_paraphrases["1"].clusters["water"].names.of(expanded=True) == ("water", "the liquid", "H2O")
    assert with_paraphrases["1"].clusters["water"].names.of(expanded=False) == plain["1"].clusters["water"].names.of(
        expanded=False
    )


def test_files_with_votes_hold_the_same_changes(tmp_path: Path) -> None:
    content = judged({"water": (5, [5, 0]), "kettle": (3, [4, 0]), "tea": (5, [0, 5])})
    answers = content["1"]["states"][0]["answers"]["step1"]
    answers["states"] = [{"votes": 2, "states": changed} for changed in answers["states"]]
    found = read_procedures(save(tmp_path / "votes.json", content))
    assert found["1"].states == read_procedures(save(tmp_path / "plain.json", clustered()))["1"].states


@pytest.mark.parametrize(
    ("name", "bare"), [("The Kettle", "kettle"), ("an a", "a"), ("a the cup", "the cup"), ("anise", "anise")]
)
def test_one_leading_article_is_stripped(name: str, bare: str) -> None:
    assert normalise(name) == bare


def test_published_files_have_the_published_counts(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0"
    gold = read_clustered(folder / EXPANDED)
    assert len(gold) == 55
    assert sum(len(procedure.steps) for procedure in gold.values()) == 274
    assert sum(len(procedure.clusters) for procedure in gold.values()) == 356
    clusters = [cluster for procedure in gold.values() for cluster in procedure.clusters.values()]
    assert sum(len(cluster.attributes) for cluster in clusters) == 1_068
    by_step = [step for procedure in gold.values() for states in procedure.states for step in states.steps]
    assert (sum(map(bool, by_step)), sum(map(len, by_step))) == (669, 1_193)
    states = States().read_gold(folder / RANKED, None)
    assert sum(len(step) for steps in states.values() for step in steps) == 1_324
    # So one file serves with and without paraphrases.
    plain = read_clustered(folder / CLUSTERED)
    assert {key: procedure.states for key, procedure in plain.items()} == {key: p.states for key, p in gold.items()}
    for key, procedure in plain.items():
        for name, cluster in procedure.clusters.items():
            assert cluster.names.mentions == gold[key].clusters[name].names.mentions

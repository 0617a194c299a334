"""Complete sentences, by hand and on the published gold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.systems.openpi2 import complete
from eval.systems.openpi2.gold import EXPANDED, Procedure, read_clustered, sentence
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import expanded, scores_by


def test_sentences_stand_one_a_line() -> None:
    reply = "- heat of pan was low before and high after\n  - size of egg was big before and small after"
    assert complete.parse_sentences(reply) == [
        "heat of pan was low before and high after",
        "size of egg was big before and small after",
    ]
    assert complete.parse_sentences("") == [""], "as officially, where it is part of every gold sentence"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("heat of pan was low before and high after", ("pan", "heat", "low", "high")),
        ("color of the eggs were white before and brown afterwards.", ("the eggs", "color", "white", "brown")),
        ("the pan gets hot", None),
        ("heat of pan was low before", None),
    ],
)
def test_a_change_is_read_from_its_sentence(text: str, change: tuple[str, ...] | None) -> None:
    assert complete.parse_change(text) == change


@pytest.fixture
def gold(tmp_path: Path) -> dict[str, Procedure]:
    procedures = read_clustered(save(tmp_path / "gold.json", expanded()))
    return {"1": procedures["1"]}


def test_gold_sentences_are_every_name_of_the_clusters(gold: dict[str, Procedure]) -> None:
    first, second = complete.gold_sentences(gold["1"], expanded=False)
    assert [len(texts) for texts in first] == [2 * 2 + 2 * 2, 1]
    assert first[0][0] == "temperature of water was cold before and hot after"
    assert "heat of the liquid was cold before and hot after" in first[0]
    assert len(complete.gold_sentences(gold["1"], expanded=True)[0][0]) == 3 * 3 + 3 * 2
    assert second == [["existence of tea was absent before and brewed after"]]


def test_officially_any_part_of_a_gold_sentence_is_right(gold: dict[str, Procedure]) -> None:
    predicted = {"1": [["", "of water was", "heat of water was cold before and hot after"], ["the tea is ready"]]}
    official = complete.score_complete(gold, predicted, expanded=False)
    assert (official.predicted_right, official.predicted) == (3, 4)
    assert (official.gold_found, official.gold) == (1, 3), "all three fit water, which is the first that holds them"
    corrected = complete.score_complete_corrected(gold, predicted, expanded=False)
    assert (corrected.predicted_right, corrected.predicted, corrected.gold_found) == (1, 3, 1)


def test_the_corrected_score_takes_any_state_once(gold: dict[str, Procedure]) -> None:
    said = sentence("temperature", "water", "cool", "hot")
    predicted = {"1": [[said, said.capitalize() + "."], []]}
    assert complete.score_complete(gold, predicted, expanded=False).predicted_right == 0
    corrected = complete.score_complete_corrected(gold, predicted, expanded=False)
    assert (corrected.predicted_right, corrected.predicted, corrected.gold_found) == (1, 1, 1)


def test_complete_bertscore_is_the_best_of_the_step(
    gold: dict[str, Procedure], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = {"1": [[sentence("heat", "the liquid", "cold", "hot"), "no"], [sentence("heat", "tea", "a", "b")]]}

    def equal(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        return [float(a == b) for a, b in zip(candidates, references, strict=True)]

    found = scores_by(complete.Complete(), equal, gold, predicted, monkeypatch)["complete"]["bertscore"]
    assert found == {"plain": pytest.approx(1 / 3), "expanded": pytest.approx(1 / 3)}


def test_published_gold_scored_against_itself(published_raw: Path) -> None:
    gold = read_clustered(published_raw / "openpi2" / "v2.0" / EXPANDED)
    predicted = {
        key: [
            [
                sentence(change.attribute, states.entity, change.before[0], change.after[0])
                for states in procedure.states
                for change in states.steps[place]
            ]
            for place in range(len(procedure.steps))
        ]
        for key, procedure in gold.items()
    }
    official = complete.score_complete(gold, predicted, expanded=False)
    assert (official.f1, official.gold, official.predicted) == (1, 669, 1_193)

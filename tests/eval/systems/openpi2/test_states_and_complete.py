"""States and complete sentences, by hand and on the published gold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.complete import complete_result
from eval.systems.openpi2.complete_scorer import (
    gold_sentences,
    score_complete,
    score_complete_corrected,
    sentence,
)
from eval.systems.openpi2.gold import EXPANDED, RANKED, Procedure, read_clustered
from eval.systems.openpi2.predictions import StatePair, read_states
from eval.systems.openpi2.states import states_result
from eval.systems.openpi2.states_scorer import check_aligned, exact_matches, read_gold_states, states_bertscore
from tests.eval.systems.openpi2.procedures import expanded, ranked, save


@pytest.fixture
def gold(tmp_path: Path) -> dict[str, Procedure]:
    procedures = read_clustered(save(tmp_path / "gold.json", expanded()))
    return {"1": procedures["1"]}


def pairs(*steps: Sequence[tuple[str, str]]) -> dict[str, list[list[StatePair]]]:
    return {"1": [[StatePair("x", "y", *states) for states in step] for step in steps]}


def test_states_are_compared_with_the_first_alternative_or_with_any(tmp_path: Path) -> None:
    changes = read_gold_states(save(tmp_path / "ranked.json", ranked()))
    predicted = pairs(
        [("cold", "hot"), ("tap", "Kettle"), ("cold", "warm")],
        [("absent", "made")],
    )
    assert exact_matches(predicted, changes, any_alternative=False) == [True, False, False, False]
    assert exact_matches(predicted, changes, any_alternative=True) == [True, False, False, True]
    assert states_result(changes, predicted, None).scores["states_accuracy"] == 0.25


def test_states_bertscore_is_the_mean_over_both_states(tmp_path: Path) -> None:
    changes = read_gold_states(save(tmp_path / "ranked.json", ranked()))
    predicted = pairs([("cold", "hot"), ("sink", "kettle"), ("cool", "hot")], [("absent", "made")])
    seen: list[tuple[str, str]] = []

    def equal(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        seen.extend(zip(candidates, references, strict=True))
        return [float(a == b) for a, b in zip(candidates, references, strict=True)]

    assert states_bertscore(predicted, changes, equal) == 5 / 8
    assert seen[2] == ("sink", "tap")
    assert seen[-1] == ("made", "brewed"), "the first accepted state is the reference"


def test_gold_states_may_stand_in_the_predictions_own_format(tmp_path: Path) -> None:
    path = save(tmp_path / "gold.json", {"1": [[["water", "heat", "cold | cool", "hot"]]]})
    predicted = read_states(save(tmp_path / "p.json", {"1": [[["water", "heat", "cool", "hot"]]]}), {"1": 1})
    assert exact_matches(predicted, read_gold_states(path), any_alternative=True) == [True]
    assert exact_matches(predicted, read_gold_states(path), any_alternative=False) == [False]


def test_predictions_that_do_not_align_are_refused(tmp_path: Path) -> None:
    changes = read_gold_states(save(tmp_path / "ranked.json", ranked()))
    with pytest.raises(UserError, match=r"p.json, 1\[0\]: got 1 predictions; expected one for each of the 3 gold"):
        check_aligned(pairs([("a", "b")], []), changes, Path("p.json"))
    with pytest.raises(UserError, match=r"p.json, 9: no such procedure"):
        check_aligned({"9": []}, changes, Path("p.json"))
    with pytest.raises(UserError, match=r"1\[0\]\[0\]: got .*expected entity, attribute, before and after"):
        read_states(save(tmp_path / "p.json", {"1": [[["water", "heat"]]]}), {"1": 1})
    with pytest.raises(UserError, match=r"expected one item for each of the 2 steps"):
        read_states(save(tmp_path / "p.json", {"1": []}), {"1": 2})


def test_gold_sentences_are_every_name_of_the_clusters(gold: dict[str, Procedure]) -> None:
    first, second = gold_sentences(gold["1"], expanded=False)
    assert [len(texts) for texts in first] == [2 * 2 + 2 * 2, 1]
    assert first[0][0] == "temperature of water was cold before and hot after"
    assert "heat of the liquid was cold before and hot after" in first[0]
    assert len(gold_sentences(gold["1"], expanded=True)[0][0]) == 3 * 3 + 3 * 2
    assert second == [["existence of tea was absent before and brewed after"]]


def test_officially_any_part_of_a_gold_sentence_is_right(gold: dict[str, Procedure]) -> None:
    predicted = {"1": [["", "of water was", "heat of water was cold before and hot after"], ["the tea is ready"]]}
    official = score_complete(gold, predicted, expanded=False)
    assert (official.predicted_right, official.predicted) == (3, 4)
    assert (official.gold_found, official.gold) == (1, 3), "all three fit water, which is the first that holds them"
    corrected = score_complete_corrected(gold, predicted, expanded=False)
    assert (corrected.predicted_right, corrected.predicted, corrected.gold_found) == (1, 3, 1)


def test_the_corrected_score_takes_any_state_once(gold: dict[str, Procedure]) -> None:
    said = sentence("temperature", "water", "cool", "hot")
    predicted = {"1": [[said, said.capitalize() + "."], []]}
    assert score_complete(gold, predicted, expanded=False).predicted_right == 0
    corrected = score_complete_corrected(gold, predicted, expanded=False)
    assert (corrected.predicted_right, corrected.predicted, corrected.gold_found) == (1, 1, 1)


def test_complete_bertscore_is_the_best_of_the_step(gold: dict[str, Procedure]) -> None:
    predicted = {"1": [[sentence("heat", "the liquid", "cold", "hot"), "no"], [sentence("heat", "tea", "a", "b")]]}

    def equal(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        return [float(a == b) for a, b in zip(candidates, references, strict=True)]

    found = complete_result(gold, predicted, equal).scores["complete"]["bertscore"]
    assert found == {"plain": pytest.approx(1 / 3), "expanded": pytest.approx(1 / 3)}


def test_published_gold_scored_against_itself(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0"
    gold = read_clustered(folder / EXPANDED)
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
    official = score_complete(gold, predicted, expanded=False)
    assert (official.f1, official.gold, official.predicted) == (1, 669, 1_193)
    changes = read_gold_states(folder / RANKED)
    same = {
        key: [[StatePair("", "", state.before[0], state.after[0]) for state in step] for step in steps]
        for key, steps in changes.items()
    }
    assert sum(exact_matches(same, changes, any_alternative=False)) == 1_324

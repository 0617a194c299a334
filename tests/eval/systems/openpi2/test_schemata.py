"""Schemata against clusters, counted by hand; the official quirks and what the corrected counts make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.systems.openpi2 import schemata
from eval.systems.openpi2.gold import EXPANDED, Procedure, read_by_step, read_clustered
from eval.systems.openpi2.metrics import PrecisionRecall
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import expanded, scores_by


@pytest.mark.parametrize(
    ("reply", "schema"),
    [
        ("eggs (shape), flour (color, location)", {"eggs": ["shape"], "flour": ["color", "location"]}),
        ("eggs (shape), flour (color,location), ", {"eggs": ["shape"], "flour": ["color", "location"]}),
        ("eggs (shape).", {"eggs": ["shape"]}),
        ("eggs (shape), eggs (size)", {"eggs": ["shape", "size"]}),
        ("eggs, flour", {}),
        ("eggs ()", {}),
        ("Nothing changes.", {}),
        ("", {}),
        ("pan (heat), and the lid", {"pan": ["heat"]}),
    ],
)
def test_a_schema_is_split_at_closing_brackets(reply: str, schema: dict[str, list[str]]) -> None:
    assert schemata.parse_schema(reply) == schema


@pytest.fixture
def gold(tmp_path: Path) -> dict[str, Procedure]:
    """The tea alone: 3 entity clusters, 4 attribute clusters, 3 (entity, step) pairs, 4 changes."""
    procedures = read_clustered(save(tmp_path / "gold.json", expanded()))
    return {"1": procedures["1"]}


def counts(figures: PrecisionRecall) -> tuple[int, int, int, int]:
    """Right of predicted, found of gold."""
    return figures.predicted_right, figures.predicted, figures.gold_found, figures.gold


def both(gold: dict[str, Procedure], steps: list[dict[str, list[str]]], *, with_paraphrases: bool = False) -> Any:
    predicted = {"1": steps}
    return [
        score(gold, predicted, expanded=with_paraphrases)
        for score in (schemata.score_schemata, schemata.score_schemata_corrected)
    ]


def test_a_plain_prediction_is_counted_alike(gold: dict[str, Procedure]) -> None:
    steps = [{"water": ["temperature"], "spoon": ["size"]}, {"tea": ["existence"]}]
    official, corrected = both(gold, steps)
    for scores in (official, corrected):
        assert counts(scores.entities_global) == (2, 3, 2, 3)
        assert counts(scores.attributes_global) == (2, 3, 2, 4)
        assert counts(scores.entities_local) == (2, 3, 2, 3)
    assert official.entities_global.f1 == pytest.approx(2 / 3)
    # Officially each gold change of a step counts once for each entity predicted there: (2 + 1) · 2 + 1 · 1.
    assert counts(official.attributes_local) == (2, 3, 2, 7)
    assert counts(corrected.attributes_local) == (2, 3, 2, 4)


def test_officially_a_prediction_is_normalised_for_precision_alone(gold: dict[str, Procedure]) -> None:
    official, corrected = both(gold, [{"The Water": ["Temperature"]}, {}])
    assert counts(official.entities_global) == (1, 1, 0, 3)
    assert counts(official.entities_local) == (1, 1, 0, 3)
    assert counts(official.attributes_global) == (1, 1, 0, 4)
    assert counts(corrected.entities_global) == (1, 1, 1, 3)
    assert counts(corrected.attributes_local) == (1, 1, 1, 4)


def test_officially_an_attribute_is_found_anew_in_every_step(gold: dict[str, Procedure]) -> None:
    official, corrected = both(gold, [{"water": ["heat"]}, {"water": ["temperature"]}])
    assert official.attributes_global.gold_found == 2
    assert corrected.attributes_global.gold_found == 1


def test_officially_a_match_counts_until_its_canonical_pair_is_predicted(gold: dict[str, Procedure]) -> None:
    paraphrase_first, _ = both(gold, [{"water": ["heat", "temperature"]}, {}])
    canonical_first, corrected = both(gold, [{"water": ["temperature", "heat"]}, {}])
    assert counts(paraphrase_first.attributes_global)[:2] == (2, 2)
    assert counts(canonical_first.attributes_global)[:2] == (1, 2)
    assert counts(corrected.attributes_global)[:2] == (2, 2)
    # The same paraphrase again is no new prediction, yet right a second time.
    again, corrected = both(gold, [{"water": ["heat"]}, {"water": ["heat"]}])
    assert counts(again.attributes_global)[:2] == (2, 1)
    assert counts(corrected.attributes_global)[:2] == (1, 1)


def test_locally_two_names_of_one_entity_find_it_twice_officially(gold: dict[str, Procedure]) -> None:
    official, corrected = both(gold, [{"water": ["temperature"], "liquid": ["heat"]}, {}])
    assert official.entities_local.gold_found == 2
    assert corrected.entities_local.gold_found == 1
    assert corrected.attributes_local.gold_found == 1


def test_local_precision_is_against_the_whole_procedure(gold: dict[str, Procedure]) -> None:
    official, corrected = both(gold, [{"tea": ["existence"]}, {}])
    for scores in (official, corrected):
        assert counts(scores.entities_local) == (1, 1, 0, 3)


def test_paraphrases_count_with_expansion(gold: dict[str, Procedure]) -> None:
    steps = [{"H2O": ["warmth"]}, {"tea": ["presence"]}]
    plain, _ = both(gold, steps)
    official, corrected = both(gold, steps, with_paraphrases=True)
    assert plain.attributes_global.predicted_right == 0
    assert counts(official.attributes_global) == (2, 2, 1, 4)
    assert counts(corrected.attributes_global) == (2, 2, 2, 4), "officially the capitals of H2O are lost"


def test_nothing_predicted_scores_nothing(gold: dict[str, Procedure]) -> None:
    for scores in both(gold, [{}, {}]):
        assert (scores.attributes_global.f1, scores.attributes_local.f1) == (0, 0)


def test_bertscore_takes_the_best_of_the_clusters_names(
    gold: dict[str, Procedure], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared_letters(candidates: Any, references: Any) -> list[float]:
        return [float(a == b) for a, b in zip(candidates, references, strict=True)]

    predicted = {"1": [{"tea": ["existence"]}, {"spoon": ["size"], "liquid": ["heat"]}]}
    found = scores_by(schemata.Schemata(), shared_letters, gold, predicted, monkeypatch)["schemata"]["bertscore"]
    # Of three predictions one is a gold pair of the procedure ("the liquid" is, "liquid" is not), none of its step.
    assert found["plain"] == {"global": pytest.approx(1 / 3), "local": 0}
    without = scores_by(schemata.Schemata(), None, gold, predicted, monkeypatch)["schemata"]["bertscore"]
    assert without["plain"] == {"global": None, "local": None}


def test_published_gold_scored_against_itself(published_raw: Path, tmp_path: Path) -> None:
    gold = read_clustered(published_raw / "openpi2" / "v2.0" / EXPANDED)
    predicted = {
        key: [
            {s.entity: [c.attribute for c in s.steps[place]] for s in procedure.states if s.steps[place]}
            for place in range(len(procedure.steps))
        ]
        for key, procedure in gold.items()
    }
    steps = {key: procedure.steps for key, procedure in gold.items()}
    assert read_by_step(save(tmp_path / "gold.json", predicted), steps, schemata.Schemata.schema) == predicted
    official = schemata.score_schemata(gold, predicted, expanded=False)
    assert (official.entities_global.gold, official.attributes_global.gold) == (356, 1_068)
    assert official.entities_local.gold == 669
    assert official.attributes_global.recall > 1, "found anew in every step"
    corrected = schemata.score_schemata_corrected(gold, predicted, expanded=False)
    assert (corrected.entities_local.f1, corrected.attributes_local.f1) == (1, 1)
    assert corrected.attributes_local.gold == 1_193

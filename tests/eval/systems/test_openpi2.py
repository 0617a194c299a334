"""OpenPI2.0's files, schemata, errors, states and sentences: counted by hand, and the published gold."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.gold import (
    EXPANDED,
    RANKED,
    Change,
    Procedure,
    expansions,
    gold_statistics,
    read_by_step,
    read_clustered,
    read_procedures,
    sentence,
)
from eval.systems.openpi2.schemata import Schemata, score_schemata
from eval.systems.openpi2.states import (
    Complete,
    StatePair,
    States,
    gold_sentences,
    score_sentences,
)
from eval.systems.openpi2.task import PrecisionRecall, ScorerOptions
from tests.command import output_of
from tests.eval.systems.files import save
from tests.eval.systems.openpi2_procedures import clustered, expanded, ranked, scores_by


def equal(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
    """Stands in for BERTScore."""
    return [float(a == b) for a, b in zip(candidates, references, strict=True)]


@pytest.fixture
def gold(tmp_path: Path) -> dict[str, Procedure]:
    """The tea alone: 3 entity clusters, 4 attribute clusters, 3 (entity, step) pairs, 4 changes."""
    procedures = read_clustered(save(tmp_path / "gold.json", expanded()))
    return {"1": procedures["1"]}


@pytest.fixture
def published(published_raw: Path) -> Path:
    return published_raw / "openpi2" / "v2.0"


def test_the_three_forms_have_one_shape(tmp_path: Path) -> None:
    plain, with_paraphrases, mentions = (
        read_procedures(save(tmp_path / f"{number}.json", content))
        for number, content in enumerate((clustered(), expanded(), ranked()))
    )
    assert plain["1"].states == with_paraphrases["1"].states
    assert plain["1"].states[0].steps[0][0] == Change(attribute="temperature", before=("cold", "cool"), after=("hot",))
    assert mentions["1"].states[0].entity == "water | the liquid"
    assert not mentions["1"].clusters
    assert ["expanded" in expansions(one) for one in (plain, with_paraphrases, mentions)] == [False, True, False]
    assert with_paraphrases["1"].clusters["water"].names.of(expanded=True) == ("water", "the liquid", "H2O")
    assert with_paraphrases["1"].clusters["water"].names.of(expanded=False) == plain["1"].clusters["water"].names.of(
        expanded=False
    )


CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
RULES = {"official": True, "corrected": False}


def counts(figures: PrecisionRecall) -> list[int]:
    """Right of predicted, found of gold."""
    return [figures.predicted_right, figures.predicted, figures.gold_found, figures.gold]


@pytest.mark.parametrize("case", CASES["schemata"], ids=lambda case: case["why"])
def test_schemata_of_hand_worked_predictions(gold: dict[str, Procedure], case: dict[str, Any]) -> None:
    for rule, official in RULES.items():
        expanded = case.get("expanded", False)
        figures = score_schemata(gold["1"], case["said"], expanded=expanded, official=official)
        assert {level: counts(figures[level]) for level in case[rule]} == case[rule]


@pytest.mark.parametrize("case", CASES["sentences"], ids=lambda case: case["why"])
def test_sentences_of_hand_worked_predictions(gold: dict[str, Procedure], case: dict[str, Any]) -> None:
    for rule, official in RULES.items():
        assert counts(score_sentences(gold["1"], case["said"], expanded=False, official=official)) == case[rule]


def test_bertscore_takes_the_best_of_a_cluster(gold: dict[str, Procedure], monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = {"1": [{"tea": ["existence"]}, {"spoon": ["size"], "liquid": ["heat"]}]}
    found = scores_by(Schemata(), equal, gold, predicted, monkeypatch)["schemata"]["bertscore"]
    # Of three predictions one is a gold pair of the procedure ("the liquid" is, "liquid" is not), none of its step.
    assert found["plain"] == {"global": pytest.approx(1 / 3), "local": 0}
    without = scores_by(Schemata(), None, gold, predicted, monkeypatch)["schemata"]["bertscore"]
    assert without["plain"] == {"global": None, "local": None}


def test_published_gold_scored_against_itself(published: Path, tmp_path: Path) -> None:
    gold = read_clustered(published / EXPANDED)
    schemata = {
        key: [
            {s.entity: [c.attribute for c in s.steps[place]] for s in procedure.states if s.steps[place]}
            for place in range(len(procedure.steps))
        ]
        for key, procedure in gold.items()
    }
    steps = {key: procedure.steps for key, procedure in gold.items()}
    assert read_by_step(save(tmp_path / "gold.json", schemata), steps, Schemata.schema) == schemata
    scores = Schemata().evaluate(gold, schemata, ScorerOptions(), 0).scores["schemata"]
    official, corrected = scores["official"]["plain"], scores["corrected"]["plain"]
    assert (official["entities_global"]["gold"], official["attributes_global"]["gold"]) == (356, 1_068)
    assert official["entities_local"]["gold"] == 669
    assert official["attributes_global"]["recall"] > 1, "found anew in every step"
    assert (corrected["entities_local"]["f1"], corrected["attributes_local"]["f1"]) == (1, 1)
    assert corrected["attributes_local"]["gold"] == 1_193
    entities, attributes = scores["gold"]["entity_clusters"], scores["gold"]["attribute_clusters"]
    assert (entities["count"], attributes["count"]) == (356, 1_068)
    means = (entities["names"], entities["paraphrases"], attributes["paraphrases"])
    assert [round(value, 1) for value in means] == [7.6, 5.5, 3.3]
    sentences = {
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
    complete = Complete().evaluate(gold, sentences, ScorerOptions(), 0).scores["complete"]["official"]
    assert (complete["f1"], complete["gold"], complete["predicted"]) == (1, 669, 1_193)
    changes = States().read_gold(published / RANKED, None)
    same = {
        key: [[StatePair("", "", state.before[0], state.after[0]) for state in step] for step in steps]
        for key, steps in changes.items()
    }
    states = States().evaluate(changes, same, ScorerOptions(), 0).scores["states"]
    assert (states["official"]["accuracy"], states["changes"]) == (1, 1_324)


def test_statistics_of_the_gold_file(tmp_path: Path) -> None:
    found, table = gold_statistics(read_clustered(save(tmp_path / "gold.json", expanded())))
    assert (found["procedures"], found["steps"], found["entity_step_pairs"], found["changes"]) == (2, 3, 4, 5)
    # Names of entities: water, the liquid, H2O; kettle, pot; tea; you.
    assert found["entity_clusters"] == {"count": 4, "mentions": 5 / 4, "paraphrases": 2 / 4, "names": 7 / 4}
    assert found["attribute_clusters"]["count"] == 5
    assert "entity clusters" in table.terminal()
    plain, _ = gold_statistics(read_clustered(save(tmp_path / "plain.json", clustered())))
    assert plain["entity_clusters"] == {"count": 4, "mentions": 5 / 4, "paraphrases": None, "names": None}


# Step 1 of the tea changes heat and place of the water and the kettle's heat, step 2 the tea alone.
ANALYSIS = {
    "1": [
        {
            "the liquid": [["heat", "1"], ["size", "2"], ["warmth", "1"], ["", 100]],
            "tea": [["existence", "2"]],
            "kettle": [["temperature", 100]],
        },
        {"water": [["place", "3"], [" colour", 100]], "tea": [["existence", ""]]},
        "annotated",
    ]
}
LINES = [
    ("1", "the liquid", "heat", "correct"),
    ("1", "the liquid", "size", "no change"),
    ("1", "the liquid", "warmth", "correct"),
    ("1", "tea", "existence", "no change"),
    ("1", "kettle", "temperature", "missing"),
    ("2", "water", "place", "nonsense"),
    ("2", "water", "colour", "missing"),
    ("2", "tea", "existence", "no label"),
]
KEYS = ("step", "entity", "attribute", "label")
NUMBERS = {"correct": 1, "no change": 2, "nonsense": "3", "missing": "100", "no label": ""}  # as in CSV, or unquoted


def arguments(folder: Path, predictions: Any, task: str = "errors") -> tuple[Any, ...]:
    name = "predictions.jsonl" if isinstance(predictions, list) else "predictions.json"
    gold = save(folder / "gold.json", expanded())
    return ("score", "openpi2", save(folder / name, predictions), "--gold", gold, "--set", f"task={task}")


def scored(*call: Any) -> Any:
    return json.loads(output_of(*call, "--json", "-"))


@pytest.mark.parametrize(
    "predictions",
    [
        ANALYSIS,
        [{"procedure": "1", **dict(zip(KEYS, line, strict=True))} for line in LINES],
        [{"procedure": "1", **dict(zip(KEYS, (*line[:3], NUMBERS[line[3]]), strict=True))} for line in LINES],
    ],
)
def test_labels_are_counted_and_looked_up_in_the_gold_file(tmp_path: Path, predictions: Any) -> None:
    found = scored(*arguments(tmp_path, predictions))["errors"]
    places = {name: (own["this step"], own["another step"], own["no cluster"]) for name, own in found.items()}
    assert places == {
        "correct": (2, 0, 0),
        "no change": (0, 1, 1),
        "nonsense": (0, 1, 0),
        "missing": (1, 0, 1),
        "no label": (1, 0, 0),
    }
    assert {name: own["share"] for name, own in found.items()} == pytest.approx(
        {"correct": 2 / 5, "no change": 2 / 5, "nonsense": 1 / 5, "missing": 2 / 5, "no label": 1 / 5}
    )
    assert "Errors by people's labels (1 of 2 procedures, with expansion)" in output_of(*arguments(tmp_path, ANALYSIS))


def test_predictions_without_labels_are_looked_up_too(tmp_path: Path) -> None:
    schema = {"1": [{"water": ["warmth", "size"], "tea": ["existence"]}, {}], "2": [{"you": ["posture"]}]}
    found = scored(*arguments(tmp_path, schema, "schemata"))["schemata"]
    # Without paraphrases the warmth of water is in no cluster. Gold has four changes of the tea and one of the nap.
    assert found["errors"] == {
        "plain": {"this step": 1, "another step": 1, "no cluster": 2, "missing": 4},
        "expanded": {"this step": 2, "another step": 1, "no cluster": 1, "missing": 3},
    }


def pairs(*steps: Sequence[tuple[str, str]]) -> dict[str, list[list[StatePair]]]:
    return {"1": [[StatePair("x", "y", *states) for states in step] for step in steps]}


def test_states_are_compared_with_the_first_or_any_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = States().read_gold(save(tmp_path / "ranked.json", ranked()), None)
    predicted = pairs([("cold", "hot"), ("tap", "Kettle"), ("cold", "warm")], [("absent", "made")])
    scores = States().evaluate(changes, predicted, ScorerOptions(task="states"), 0).scores
    assert (scores["states_accuracy"], scores["states"]["corrected"]["accuracy"]) == (1 / 4, 2 / 4)
    seen: list[tuple[str, str]] = []

    def scorer(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        seen.extend(zip(candidates, references, strict=True))
        return equal(candidates, references)

    predicted = pairs([("cold", "hot"), ("sink", "kettle"), ("cool", "hot")], [("absent", "made")])
    assert scores_by(States(), scorer, changes, predicted, monkeypatch)["states_bertscore"] == 5 / 8
    assert (seen[2], seen[-1]) == (("sink", "tap"), ("made", "brewed")), "the first accepted state is the reference"


def test_states_of_other_changes_are_scored_against_the_gold_file_beside_them(tmp_path: Path) -> None:
    gold = save(tmp_path / "raw" / RANKED, ranked())
    fewer = save(tmp_path / "llama.json", {"1": [[["water", "temperature", "cold", "hot"]], []]})
    options = ScorerOptions(task="states")
    with pytest.raises(UserError, match="expected one for each of the 3 gold changes of step 1"):
        States().score(fewer, gold, options)
    beside = save(tmp_path / "llama_gold.json", {"1": [[["water", "temperature", "cool | cold", "hot"]], []]})
    result = States().score(fewer, gold, options)
    assert (result.scores["states_accuracy"], result.scores["states"]["changes"]) == (0, 1)
    assert result.scores["states"]["corrected"]["accuracy"] == 1
    assert result.scores["gold"] == str(beside)
    assert "it was scored against" in result.warnings[0]
    whole = save(tmp_path / "whole.json", {"2": [[["you", "posture", "standing", "lying"]]]})
    save(tmp_path / "whole_gold.json", {"2": [[["you", "posture", "up", "down"]]]})
    assert States().score(whole, gold, options).scores["states_accuracy"] == 1, "what fits is not replaced"


def test_gold_sentences_are_every_name_of_the_clusters(gold: dict[str, Procedure]) -> None:
    first, second = gold_sentences(gold["1"], expanded=False)
    assert [len(texts) for texts in first] == [2 * 2 + 2 * 2, 1]
    assert first[0][0] == "temperature of water was cold before and hot after"
    assert "heat of the liquid was cold before and hot after" in first[0]
    assert len(gold_sentences(gold["1"], expanded=True)[0][0]) == 3 * 3 + 3 * 2
    assert second == [["existence of tea was absent before and brewed after"]]


def test_complete_bertscore_is_a_steps_best(gold: dict[str, Procedure], monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = {"1": [[sentence("heat", "the liquid", "cold", "hot"), "no"], [sentence("heat", "tea", "a", "b")]]}
    found = scores_by(Complete(), equal, gold, predicted, monkeypatch)["complete"]["bertscore"]
    assert found == {"plain": pytest.approx(1 / 3), "expanded": pytest.approx(1 / 3)}

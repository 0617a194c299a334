"""CREPE's files and scores: what counts as predicted, and scores against hand-worked numbers and a naive loop."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from eval.systems.crepe import gold
from eval.systems.crepe.benchmark import CREPE, CrepeScoreOptions
from eval.systems.crepe.gold import (
    EQUALLY,
    LESS,
    MORE,
    CrepePredictions,
    EntityChange,
    label_of,
    predictions_text,
    read_predictions,
    read_procedures,
    read_states,
)
from eval.systems.crepe.scorer import baselines, topics_of
from tests.command import call, output_of
from tests.eval.systems.crepe_procedures import BURN, COLD, DARK, GOLD, event, with_predictions
from tests.eval.systems.files import save


def test_a_template_says_which_gold_file_of_a_folder_it_asks_about(tmp_path: Path) -> None:
    for split in ("dev", "test"):
        save(tmp_path / f"data_{split}_v2.json", GOLD)
    written = call("score", "crepe", "--gold", tmp_path, "--template", tmp_path / "answers.csv")
    assert f"gold: {tmp_path / 'data_dev_v2.json'}" in written.err


def test_states_are_read_by_procedure_and_step(tmp_path: Path) -> None:
    procedures = read_procedures(save(tmp_path / "gold.json", GOLD))
    change = EntityChange("the kettle", "hot", "more likely")
    path = save(tmp_path / "states.json", {"3": {"2": [vars(change)]}, "5": {}})
    assert read_states(path, procedures) == {"3": [[], [change], []], "5": [[], []]}


@pytest.mark.parametrize(
    ("entity", "found"),
    [
        ("the kettle", True),
        ("Kettle", True),
        ("hand", True),
        ("the", False),
        ("kett", False),
        ("the hot kettle", False),
    ],
)
def test_an_event_mentions_an_entity_by_its_words(entity: str, found: bool) -> None:
    assert gold.mentions("I burn my hand on a kettle.", entity) is found


def test_at_most_five_states_a_step_of_mentioned_entities_are_shown(tmp_path: Path) -> None:
    procedure = read_procedures(save(tmp_path / "gold.json", GOLD))[0]
    fitting = [EntityChange("kettle", f"a{n}", "more likely") for n in range(8)]
    states = [[EntityChange("the moon", "full", "more likely"), *fitting], [], fitting[:2]]
    shown = gold.fitting_states(procedure, states, 0)
    assert [len(changes) for changes in shown] == [5, 0, 2]
    assert shown[0] == [one for one in fitting if one in shown[0]], "in their order, without the moon"
    assert shown == gold.fitting_states(procedure, states, 0)
    assert any(gold.fitting_states(procedure, states, seed) != shown for seed in range(1, 5))


@pytest.mark.parametrize(
    ("change", "official", "corrected"),
    [
        ("less likely", LESS, LESS),
        ("more likely", MORE, MORE),
        ("equally likely", MORE, EQUALLY),
        ("", MORE, EQUALLY),
        (" Less likely", MORE, LESS),
    ],
)
def test_changes_as_labels(change: str, official: int, corrected: int) -> None:
    assert (label_of(change, official=True), label_of(change, official=False)) == (official, corrected)


def read(
    folder: Path, content: Any, gold: Any = GOLD, read_as: Any = "auto", missing: Any = "error"
) -> CrepePredictions:
    procedures = read_procedures(save(folder / "gold.json", gold))
    return read_predictions(save(folder / "p.json", content), procedures, read_as, missing)


def test_marked_predictions_count_and_the_gold_beside_them_does_not(tmp_path: Path) -> None:
    found = read(tmp_path, with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]}))
    assert found.facts["read"] == "predicted"
    assert found.changes == {"3": [{}] * 3, "5": [{}, {DARK: "more likely"}]}


def test_the_gold_file_predicts_itself_unless_it_is_said_to_be_an_output_without_a_change(tmp_path: Path) -> None:
    found = read(tmp_path, GOLD)
    assert found.facts["read"] == "event"
    assert "they score as perfect" in found.notes[0]
    assert found.changes["3"] == [{BURN: "more likely"}, {}, {BURN: "less likely", COLD: "more likely"}]
    assert read(tmp_path, GOLD, read_as="predicted").changes["5"] == [{}, {}]


def test_a_file_in_the_gold_files_shape_is_read_by_its_events(tmp_path: Path) -> None:
    content = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    found = read(tmp_path, content)
    assert found.facts["read"] == "event"
    assert found.changes["5"] == [{DARK: "less likely"}, {DARK: "more likely"}]
    assert read(tmp_path, content, read_as="predicted").changes["5"] == [{}, {}]
    assert read(tmp_path, GOLD, read_as="event").changes["3"][0] == {BURN: "more likely"}


def test_gold_that_a_file_carries_is_compared_with_the_gold_file(tmp_path: Path) -> None:
    predicted = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely", "predicted_event")]})
    assert read(tmp_path, predicted).facts["other_gold"] == 0
    older = with_predictions(predicted, {("5", 2): [event(DARK, "more likely")], ("3", 2): [event("It rains.", "no")]})
    assert read(tmp_path, older).facts["other_gold"] == 2, "a label and an event that the gold file has not"
    shaped = with_predictions(GOLD, {("5", 2): [event(DARK, "more likely")]})
    assert read(tmp_path, shaped).facts["other_gold"] == 0, "its events are the predictions"


def test_what_is_written_reads_back_without_older_predictions(tmp_path: Path) -> None:
    older = with_predictions(GOLD, {("5", 1): [event(DARK, "more likely", "predicted_event")]})
    procedures = read_procedures(save(tmp_path / "gold.json", older))
    changes = {
        "3": [{BURN: "less likely", COLD: "more likely"}, {}, {BURN: "more likely"}],
        "5": [{}, {DARK: "less likely"}],
    }
    hot = EntityChange("kettle", "hot", "True")
    said = CrepePredictions(changes, "", entities={"3": [[hot], [], []], "5": []})
    text = predictions_text(procedures, said)
    path = save(tmp_path / "written.json", text)
    found = read_predictions(path, procedures, "auto", "error")
    assert found.changes == changes
    written = read_procedures(path)
    assert [block.events for block in written[0].blocks] == [block.events for block in procedures[0].blocks]
    assert {"type": "predicted_entity", "entity": "kettle", "attribute": "hot", "change": "True"} in (
        written[0].raw["steps"][1]
    )
    assert "predicted" not in str(procedures[0].raw), "the gold content is left as it was"
    nothing = predictions_text(procedures, CrepePredictions({"3": [{}] * 3, "5": [{}, {}]}, ""))
    assert "predicted_event" not in nothing
    found = read_predictions(save(tmp_path / "none.json", nothing), procedures, "auto", "error")
    assert (found.facts["read"], found.changes["3"]) == ("predicted", [{}] * 3), "what a run wrote is known"


def predicted(text: str, change: str) -> dict[str, str]:
    return event(text, change, "predicted_event")


def score(folder: Path, content: Any, truth: Any = GOLD, **options: Any) -> dict[str, Any]:
    paths = save(folder / "predictions.json", content), save(folder / "gold.json", truth)
    return CREPE.score(*paths, CrepeScoreOptions(**options)).scores


def naive_macro_f1(content: dict[str, Any]) -> float:
    """The published procedure, written anew: one file holds gold and predictions, blocks from 1 on, last wins."""
    gold, found = [], []
    for procedure in content.values():
        blocks = procedure["steps"][1:]
        events = dict.fromkeys(row["event"] for block in blocks for row in block if row["type"] == "event")
        for block in blocks:
            for text in events:
                for kind, labels in (("event", gold), ("predicted_event", found)):
                    rows = [row for row in block if row["type"] == kind and row["event"] == text]
                    labels.append(0 if not rows else 1 if rows[-1]["change"] == "less likely" else 2)
    return float(f1_score(gold, found, average="macro"))


MIXED = with_predictions(
    GOLD,
    {
        ("3", 1): [predicted(BURN, "more likely"), predicted(COLD, "equally likely")],
        ("3", 2): [predicted(BURN, "less likely")],
        ("3", 3): [predicted(BURN, "more likely"), predicted(BURN, "less likely"), predicted(COLD, "")],
        ("5", 2): [predicted(DARK, "more likely")],
    },
)


def test_macro_f1_of_a_hand_worked_file(tmp_path: Path) -> None:
    scores = score(tmp_path, MIXED)
    # Pairs, gold → predicted: 2→2, 0→2 (quirk), 0→1, 0→0, 1→1 (the last), 2→2 (empty), 1→0, 0→2.
    # equally: tp 1 fp 1 fn 3 → 2/6; less: tp 1 fp 1 fn 1 → 2/4; more: tp 2 fp 2 fn 0 → 4/6.
    assert scores["f1"] == pytest.approx({"equally likely": 2 / 6, "less likely": 2 / 4, "more likely": 4 / 6})
    assert scores["macro_f1"] == pytest.approx((2 / 6 + 2 / 4 + 4 / 6) / 3)
    assert scores["macro_f1"] == pytest.approx(naive_macro_f1(MIXED))
    assert scores["accuracy"] == 4 / 8


def test_the_corrected_variant_reads_changes_by_their_meaning(tmp_path: Path) -> None:
    # Now 0→0 where the file says "equally likely", and 2→0 where it says nothing.
    # equally: tp 2 fp 2 fn 2 → 4/8; less: 2/4; more: tp 1 fp 1 fn 1 → 2/4.
    assert score(tmp_path, MIXED)["corrected"]["macro_f1"] == pytest.approx(1 / 2)
    spelled = with_predictions(GOLD, {("5", 1): [predicted(DARK, "Less likely")]})
    both = score(tmp_path, spelled)
    assert both["counts"]["predicted"] == {"equally likely": 7, "less likely": 0, "more likely": 1}
    assert both["corrected"]["macro_f1"] > both["macro_f1"]


def test_the_sub_tasks_of_a_hand_worked_file(tmp_path: Path) -> None:
    scores = score(tmp_path, MIXED)
    # Changed: gold 4 of 8, predicted 6 of 8, 3 in both. changed: 6/10; unchanged: tp 1 fp 1 fn 3 → 2/6.
    assert scores["did_it_change"] == {"macro_f1": pytest.approx((6 / 10 + 2 / 6) / 2), "pairs": 8}
    # Both changed: 2→2, 1→1, 2→2.
    assert (scores["which_way"]["macro_f1"], scores["which_way"]["pairs"]) == (1.0, 3)
    # All that changed: the 1→0 too; less: tp 1 fn 1 → 2/3, more 1.
    assert scores["which_way"]["all_changed"] == {"macro_f1": pytest.approx((2 / 3 + 1) / 2), "pairs": 4}


def test_the_breakdown_by_length(tmp_path: Path) -> None:
    groups = score(tmp_path, MIXED)["by_length"]
    assert (groups["3 steps"]["pairs"], groups["2 steps"]["pairs"], groups["up to 7 steps"]["pairs"]) == (6, 2, 8)
    assert groups["more than 7 steps"] == {"macro_f1": None, "procedures": 0, "pairs": 0}
    # 2 steps: 1→0, 0→2: nothing is right.
    assert groups["2 steps"]["macro_f1"] == 0
    # Words of the steps: 3, 5, 3 and 3, 3, so 3.4 on average, and "Pour it on the leaves." alone has more.
    assert groups["step of more than 3.4 words"]["pairs"] == 2
    assert groups["step of up to 3.4 words"]["pairs"] == 6


def test_random_files_score_as_the_naive_loop(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["more likely", "less likely", "equally likely", "", "LESS LIKELY"]
    for _ in range(5):
        rows = {
            (name, block): [predicted(text, words[rng.integers(5)]) for text in texts for _ in range(rng.integers(3))]
            for name, texts in (("3", (BURN, COLD)), ("5", (DARK,)))
            for block in range(1, len(GOLD[name]["steps"]))
        }
        content = with_predictions(GOLD, rows)
        assert score(tmp_path, content, read="predicted")["macro_f1"] == pytest.approx(naive_macro_f1(content))


def test_baselines_of_hand_worked_labels() -> None:
    gold = np.array([0, 0, 0, 1, 2])
    found = baselines(gold, seeds=500, seed=0)
    # equally: tp 3 fp 2 → 6/8; the others 0.
    assert found["majority"]["macro_f1"] == pytest.approx(6 / 8 / 3)
    draws = np.random.default_rng(7).integers(3, size=(600, 5))
    expected = np.mean([f1_score(gold, draw, average="macro") for draw in draws])
    assert found["chance"]["macro_f1"] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("split", "pairs", "majority"), [("dev", 727, 0.297), ("test", 1_520, 0.291)])
def test_published_files_have_pairs_and_baselines(crepe_raw: Path, split: str, pairs: int, majority: float) -> None:
    path = crepe_raw / f"data_{split}_v2.json"
    scores = CREPE.score(path, path, CrepeScoreOptions(read="predicted")).scores  # nothing is marked as predicted
    assert scores["counts"]["pairs"] == pairs
    assert round(scores["macro_f1"], 3) == round(scores["baselines"]["majority"]["macro_f1"], 3) == majority
    assert scores["baselines"]["chance"]["macro_f1"] == pytest.approx(0.262, abs=0.01)
    as_predictions = CREPE.score(path, path, CrepeScoreOptions()).scores
    assert as_predictions["macro_f1"] == as_predictions["corrected"]["macro_f1"] == 1


def test_another_annotators_labels_beside_the_gold_file_are_a_row(tmp_path: Path) -> None:
    assert "human" not in score(tmp_path, MIXED)["baselines"]
    save(tmp_path / "dev_data_human_labeled.json", MIXED)
    gold = save(tmp_path / "data_dev_v2.json", GOLD)
    result = CREPE.score(save(tmp_path / "own.json", GOLD), gold, CrepeScoreOptions())
    assert result.scores["macro_f1"] == 1
    assert result.scores["baselines"]["human"]["macro_f1"] == pytest.approx(naive_macro_f1(MIXED))
    assert "human: macro-F1" in result.text


TABLE_1 = {
    "dev": {"Recipe": 10, "Household": 12, "Craft": 4, "Technology": 5, "Travel": 4, "Sports": 2, "Others": 5},
    "test": {"Recipe": 33, "Household": 40, "Craft": 17, "Technology": 19, "Travel": 4, "Sports": 13, "Others": 15},
}


@pytest.mark.parametrize("split", TABLE_1)
def test_each_topic_has_the_procedures_of_table_1(crepe_raw: Path, split: str) -> None:
    gold = crepe_raw / f"data_{split}_v2.json"
    result = CREPE.score(gold, gold, CrepeScoreOptions(split=split))  # type: ignore[arg-type]
    assert Counter(topics_of(read_procedures(gold)).values()) == TABLE_1[split]
    found = result.scores["by_topic"].values()
    assert sum(row["pairs"] for row in found) == result.scores["counts"]["pairs"]
    # One procedure of test has no event, so nothing of it is scored.
    assert sum(row["procedures"] for row in found) == sum(TABLE_1[split].values()) - (split == "test")


MENTIONED = {BURN: "True", COLD: "True", DARK: "False"}
ALONE = {BURN: "True", COLD: "False", DARK: "False"}


def scored(folder: Path, changes: Any, *given: str) -> tuple[dict[str, Any], str]:
    """Return the scores of predicted changes, and what is printed."""
    files = save(folder / "predictions.json", with_predictions(GOLD, changes)), save(folder / "gold.json", GOLD)
    call = ("score", "crepe", "--predictions", files[0], "--gold", files[1], *given)
    return json.loads(output_of(*call, "--json", "-")), output_of(*call)


def related(text: str, change: str, relation: str) -> dict[str, Any]:
    return {**event(text, change, "predicted_event"), "event_entity_inference": ["kettle", "hot", relation]}


def test_each_relation_is_scored_over_the_changes_that_have_it(tmp_path: Path) -> None:
    changes = {
        ("3", 1): [related(BURN, "more likely", "entailment"), related(COLD, "less likely", "contradiction")],
        ("3", 2): [related(BURN, "more likely", "entailment")],
        ("5", 1): [related(DARK, "less likely", "contradiction")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    scores, printed = scored(tmp_path, changes)
    found = scores["by_relation"]
    # (more, more), (equally, more): F1 of more 2·1/(1 + 2), of equally 0.
    assert found["entailment"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    # (equally, less), (less, less): likewise.
    assert found["contradiction"] == {"macro_f1": pytest.approx(1 / 3), "pairs": 2}
    assert found["unrelated"] == {"macro_f1": None, "pairs": 0}
    assert found["unlabelled_changes"] == 1
    assert "By logical relation (predicted changes without one: 1)" in printed


def labelled() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(GOLD))
    for procedure in content.values():
        for row in (row for block in procedure["steps"] for row in block if row.get("type") == "event"):
            row |= {"EOI": MENTIONED[row["event"]], "Singular": ALONE[row["event"]]}
    return content


def test_pairs_count_once_and_officially_once_for_each_dictionary(tmp_path: Path) -> None:
    # Of the lamp: right at the first step, wrong at the second.
    changes = {
        ("5", 1): [event(DARK, "less likely", "predicted_event")],
        ("5", 2): [event(DARK, "more likely", "predicted_event")],
    }
    scores, printed = scored(tmp_path, changes, "--set", f"eoi={save(tmp_path / 'eoi.json', labelled())}")
    found = scores["by_interest"]
    lamp = found["entity of interest not mentioned"]
    # Pairs: (less, less), (equally, more): F1 of 1, 0 and 0.
    assert (lamp["pairs"], lamp["macro_f1"]) == (2, pytest.approx(1 / 3))
    # Dictionaries: step, event, prediction | step, prediction: (equally, equally), (less, equally), (less, less) |
    # (equally, equally), (equally, more): F1 of equally 2·2/(3 + 3), of less 2·1/(2 + 1), of more 0.
    assert lamp["official_macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 3)
    assert found["entity of interest mentioned"]["pairs"] == 6
    assert found["answerable by the step"]["pairs"] == 3
    assert found["unlabelled_pairs"] == 0
    assert "By entity of interest" in printed

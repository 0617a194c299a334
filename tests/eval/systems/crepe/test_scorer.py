"""CREPE's scores against hand-worked numbers and an independent loop over the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from eval.systems.crepe.gold import label_in, read_procedures
from eval.systems.crepe.scorer import baselines, topics_of
from eval.systems.crepe.system import CREPE, CrepeScoreOptions
from tests.eval.systems.crepe.procedures import BURN, COLD, DARK, GOLD, LABELS, event, with_predictions
from tests.eval.systems.files import save


def predicted(text: str, change: str) -> dict[str, str]:
    return event(text, change, "predicted_event")


def score(folder: Path, content: Any, gold: Any = GOLD, **options: Any) -> dict[str, Any]:
    paths = save(folder / "predictions.json", content), save(folder / "gold.json", gold)
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


def test_pairs_are_labelled_without_carrying_over(tmp_path: Path) -> None:
    for procedure in read_procedures(save(tmp_path / "gold.json", GOLD)):
        found = [[label_in(b.events, text, official=True) for text in procedure.events] for b in procedure.blocks]
        assert found == LABELS[procedure.id]


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


def test_predictions_of_unknown_events_do_not_count_but_are_told(tmp_path: Path) -> None:
    content = with_predictions(
        GOLD, {("5", 1): [predicted(DARK, "less likely"), predicted("It rains.", "more likely")]}
    )
    scores = score(tmp_path, content)
    assert scores["strangers"] == 1
    assert scores["macro_f1"] == pytest.approx(naive_macro_f1(content))


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


def test_the_interval_holds_the_score_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    content = with_predictions(
        {str(n): GOLD["3" if n % 2 else "5"] for n in range(12)},
        {(str(n), 1): [predicted(BURN if n % 2 else DARK, "more likely")] for n in range(8)},
    )
    gold = {str(n): GOLD["3" if n % 2 else "5"] for n in range(12)}
    one, again, other = (score(tmp_path, content, gold, seed=seed) for seed in (0, 0, 1))
    low, high = one["macro_f1_interval"]
    assert low < one["macro_f1"] < high
    assert one == again
    assert one["macro_f1_interval"] != other["macro_f1_interval"]


def test_baselines_of_hand_worked_labels() -> None:
    gold = np.array([0, 0, 0, 1, 2])
    found = baselines(gold, seeds=500, seed=0)
    # equally: tp 3 fp 2 → 6/8; the others 0.
    assert found["majority"]["macro_f1"] == pytest.approx(6 / 8 / 3)
    draws = np.random.default_rng(7).integers(3, size=(600, 5))
    expected = np.mean([f1_score(gold, draw, average="macro") for draw in draws])
    assert found["chance"]["macro_f1"] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(("split", "pairs", "majority"), [("dev", 727, 0.297), ("test", 1_520, 0.291)])
def test_published_files_have_their_pairs_and_baselines(
    crepe_raw: Path, split: str, pairs: int, majority: float
) -> None:
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


def test_files_that_are_not_the_published_ones_have_no_topics(tmp_path: Path) -> None:
    assert score(tmp_path, MIXED)["by_topic"] == {}

"""What can be told of an nli label from the hypothesis alone."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, write_samples
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.context_free import accuracy_by_places, hypothesis_alone
from data_builders.quality.stats import compute_stats
from tests.command import output_of
from tests.data_builders.nli_rows import nli


def _hypotheses(tell: str, seed: int = 1) -> list[EventSample]:
    """200 rows on 50 premises; `tell` says what gives the label away: the hypothesis, the premise or nothing."""
    random_ = random.Random(seed)
    rows = []
    for number in range(200):
        label = random_.choice(("positive", "negative"))
        premise = number // 4
        if tell == "premise":
            label = ("positive", "negative")[premise % 2]
        word = {"hypothesis": {"positive": "surely", "negative": "never"}[label], "premise": f"word{premise}"}
        rows.append(nli(number, f"Story {premise}.", f"She {word.get(tell, 'then')} came home {number}.", label))
    return rows


def test_a_give_away_word_is_found_chance_is_chance_and_premises_are_new() -> None:
    leaking, clean, premise = (hypothesis_alone(_hypotheses(tell)) for tell in ("hypothesis", "nothing", "premise"))
    assert leaking.accuracy > 0.99
    # Each premise has a word of its own that tells its label: it helps only where the premise was trained on.
    assert (premise.contexts, premise.accuracy < 0.7) == (50, True)
    assert abs(clean.accuracy - 0.5) < 4 * clean.standard_error
    assert clean.standard_error == pytest.approx((clean.accuracy * (1 - clean.accuracy) / 200) ** 0.5, abs=1e-4)


def test_the_baseline_is_the_same_every_time_and_the_seed_matters() -> None:
    rows = _hypotheses("nothing")[:120]
    assert hypothesis_alone(rows) == hypothesis_alone(rows)
    assert len({hypothesis_alone(rows, seed).accuracy for seed in range(3)}) > 1


def test_too_few_rows_give_no_accuracy() -> None:
    rows = _hypotheses("hypothesis")
    few = hypothesis_alone(rows[:20])
    assert (few.n, few.contexts, few.accuracy) == (20, 5, None)
    positive = [row for row in rows if row.answers == ["positive"]]
    one_label = hypothesis_alone(positive)
    assert (one_label.majority_share, one_label.accuracy) == (1.0, None)
    assert hypothesis_alone(rows).majority_share == round(max(len(positive), 200 - len(positive)) / 200, 4)


def test_without_scikit_learn_only_the_measures_of_classifiers_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = _hypotheses("nothing")
    write_samples(rows, tmp_path / "rows.jsonl")
    whole = compute_stats([SampleSet("data", rows)], tokenizer="words")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find_spec(name))
    found = compute_stats([SampleSet("data", rows)], tokenizer="words")
    assert "pip install 'd2e-sft[stats]'" in found.pop("left_out")
    [group], [expected] = found["groups"], whole["groups"]
    assert expected["hypothesis_alone"]["accuracy"] is not None
    expected["hypothesis_alone"] |= {"accuracy": None, "standard_error": None}
    assert group == {**expected, "hypothesis_and_places_of_its_words": {}}
    printed = output_of(
        "data", "stats", tmp_path / "rows.jsonl", "--tokenizer", "words", "--html", tmp_path / "page.html"
    )
    assert "majority label" in printed
    assert "pip install 'd2e-sft[stats]'" in printed
    assert "±" not in printed
    assert "not measured" in (tmp_path / "page.html").read_text("utf-8")


FILLER = "They walked on and said little while the day went by."


def test_with_the_places_of_words_it_tells_the_order_unless_the_deciding_sentence_is_cut() -> None:
    random_, rows = random.Random(2), []  # stories in which it rains early or late
    for number in range(400):
        early = random_.random() < 0.5
        parts = [f"Story {number}. It rained.", FILLER, FILLER]
        context = " ".join(parts if early else [f"Story {number}.", FILLER, FILLER, "It rained."])
        rows.append(nli(number, context, "It rained at the beginning.", "positive" if early else "negative"))
    assert accuracy_by_places(rows, [row.context for row in rows]) == 1.0
    cut = accuracy_by_places(rows, [FILLER] * len(rows))
    assert 0.4 < cut < 0.6
    assert accuracy_by_places(rows[:12], [FILLER] * 12) is None

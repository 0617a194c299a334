"""Scores against cases worked out by hand: groups, means, label shares, subsets, and shares of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from d2e_sft.util.errors import UserError
from eval.score.faithfulness import (
    answer_in_context,
    claim_overlap,
    context_recall,
    lacks_answer,
    refusals_of,
    refuses,
    word_measures,
)
from eval.score.frame import AVERAGE, BOTH
from eval.score.predictions import EventScores, Prediction, ScoredOption
from eval.score.scores import DatasetSubsets, headline, score_predictions
from eval.score.scoring import score_output
from tests.factories import choice, prediction, story
from tests.tiny import chat_sample


def content_of(predictions: Sequence[Prediction]) -> dict[str, Any]:
    return score_predictions(predictions).content()


def test_groups_relations_and_all_have_their_own_means() -> None:
    others = [choice(n, False, dataset="pantry") for n in range(4)]
    scores = content_of([choice(1, True), prediction(1, True), choice(2, False, f1=0.5), *others])
    assert [(g["dataset"], g["relation"], g["format"], g["n"]) for g in scores["groups"]] == [
        ("kitchen", "causal", "scq", 2), ("stories", "temporal", "nli", 1), ("pantry", "causal", "scq", 4)
    ]  # fmt: skip
    kitchen = scores["groups"][0]
    assert [kitchen[name]["mean"] for name in ("exact_match", "f1", "mean")] == [0.5, 0.75, (1 + 0.25) / 2]
    assert 0.0 < kitchen["mean"]["low"] < 0.6 < kitchen["mean"]["high"]
    assert (scores["overall"]["n"], scores["overall"]["exact_match"]["mean"]) == (7, pytest.approx(2 / 7))
    assert scores["macro"] == {"groups": 3, "mean": 1.625 / 3, "exact_match": 0.5, "f1": 1.75 / 3}
    assert scores["relations"] == [
        {"relation": "causal", "groups": 2, "mean": 0.3125, "exact_match": 0.25, "f1": 0.375},
        {"relation": "temporal", "groups": 1, "mean": 1.0, "exact_match": 1.0, "f1": 1.0},
    ]


def test_a_dataset_that_is_called_like_an_average_keeps_its_rows_apart() -> None:
    rows = [story(n, subset, "garage", dataset=name) for name in ("average", "b") for n, subset in enumerate(BOTH)]
    wrong = [story(n, subset, "barn", dataset="c") for n, subset in enumerate(BOTH)]
    scores = content_of([*rows, *wrong])
    named = {one["dataset"]: one["balanced"]["mean"] for one in scores["subsets"]}
    assert named == {"average (dataset)": 1, "b": 1, "c": 0, AVERAGE: pytest.approx(2 / 3)}


def test_set_accuracy_is_that_of_mcq_alone() -> None:
    reordered = choice(1, True, format="mcq", exact_match=0.0, f1=1.0, set_accuracy=1.0)
    scores = content_of([reordered, choice(2, False, format="mcq", set_accuracy=0.0), choice(3, True)])
    assert scores["groups"][0]["set_accuracy"]["mean"] == 0.5
    assert scores["groups"][0]["exact_match"]["mean"] == 0.0
    assert "set_accuracy" not in scores["groups"][1]
    assert "set_accuracy" not in scores["overall"]


def test_events_are_averaged_over_the_answers_that_have_them() -> None:
    right = EventScores(token_f1=1, event_f1=1, hit_at_1=1, exact_match=1)
    wrong = EventScores(token_f1=0.5, event_f1=0, hit_at_1=0, exact_match=0)
    samples = [choice(number, True, events=own) for number, own in enumerate((right, wrong, None))]
    group = content_of(samples)["groups"][0]
    assert group["events"]["n"] == 2
    assert (group["events"]["token_f1"]["mean"], group["events"]["hit_at_1"]["mean"]) == (0.75, 0.5)
    assert "events" not in content_of(samples[2:])["groups"][0]


def test_shares_of_labels_and_of_ways_of_extraction_are_of_each_group_and_of_all() -> None:
    unparsed = prediction(3, False, output="hm", answer=["hm"], extraction="none", gold=["negative"])
    lenient = [choice(n, True, extraction="lenient") for n in range(4)]
    scores = content_of([prediction(1, True), prediction(2, True), unparsed, prediction(4, False), *lenient])
    stories, kitchen = scores["groups"]
    assert stories["label_shares"] == {"positive": 0.5, "negative": 0.25, "other": 0.25}
    assert stories["gold_shares"] == {"positive": 0.75, "negative": 0.25}
    assert stories["extraction"] == {"strict": 0.75, "lenient": 0.0, "none": 0.25}
    assert "label_shares" not in kitchen
    assert scores["overall"]["extraction"] == {"strict": 0.375, "lenient": 0.5, "none": 0.125}


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="no prediction"):
        score_predictions([])


def subsets_of(predictions: Sequence[Prediction]) -> list[DatasetSubsets]:
    return score_predictions(predictions).subsets


def test_the_gap_is_the_accuracy_on_aligned_rows_less_that_on_conflict_rows() -> None:
    # 4 aligned rows of which 3 are right, 5 conflict rows of which 2 are: 0.75 − 0.4.
    rows = [story(n, "aligned", "garage" if n < 3 else "attic", habit="garage") for n in range(4)]
    rows += [story(10 + n, "conflict", "garage" if n < 2 else "kitchen") for n in range(5)]
    (scores,) = subsets_of(rows)
    assert list(scores.subsets) == ["aligned", "conflict"]
    assert (scores.subsets["aligned"].n, scores.subsets["conflict"].n) == (4, 5)
    assert scores.subsets["aligned"].accuracy.mean == 0.75
    assert scores.subsets["conflict"].accuracy.mean == 0.4
    assert scores.gap.mean == pytest.approx(0.35)
    assert scores.gap.low < 0 < scores.gap.high, "nine rows decide nothing"
    assert scores.balanced.mean == pytest.approx(0.575)


def test_conflict_answers_are_the_habit_in_any_accepted_form_and_outputs_fall_into_four_cells() -> None:
    said = ["garage", "garage, not the kitchen", "the kitchen.", "cookhouse", "attic", ""]
    (scores,) = subsets_of([story(n, "conflict", s, habit=["kitchen", "cookhouse"]) for n, s in enumerate(said)])
    own = scores.subsets["conflict"]
    assert own.with_habit == own.n == 6
    assert (own.habit_rate.mean, own.accuracy.mean) == pytest.approx((2 / 6, 1 / 6))
    cells = {"context_only": 1 / 6, "habit_only": 2 / 6, "both": 1 / 6, "neither": 2 / 6}
    assert own.contains == pytest.approx(cells)
    assert own.memorisation_ratio.mean == pytest.approx(3 / (2 + 3))  # P_o / (P_s + P_o), `both` in each
    assert own.memorisation_ratio.low < 0.6 < own.memorisation_ratio.high
    assert scores.gap is None
    (never,) = subsets_of([story(n, "conflict", "attic") for n in range(3)])
    assert never.subsets["conflict"].memorisation_ratio is None
    assert never.subsets["conflict"].contains


def test_rows_without_a_habit_count_for_accuracy_alone_and_other_subsets_have_no_ratio() -> None:
    rows = [story(1, "conflict", "kitchen"), story(2, "conflict", "garage", habit=[]), story(3, "gold", "x", habit=[])]
    rows += [story(4 + n, "unanswerable", "kitchen" if n < 3 else "unknown", gold=["unknown"]) for n in range(4)]
    (scores,) = subsets_of(rows)
    conflict, gold, lacking = (scores.subsets[name] for name in ("conflict", "gold", "unanswerable"))
    assert (conflict.n, conflict.with_habit, conflict.accuracy.mean, conflict.habit_rate.mean) == (2, 1, 0.5, 1.0)
    assert (gold.with_habit, gold.habit_rate, gold.contains) == (0, None, None)
    assert (lacking.habit_rate.mean, lacking.contains, lacking.memorisation_ratio) == (0.75, None, None)


def test_the_average_weighs_datasets_alike_and_is_over_those_with_both_subsets() -> None:
    big = [story(n, "aligned", "garage", habit="garage", dataset="big") for n in range(8)]
    big += [story(20 + n, "conflict", "kitchen" if n < 6 else "garage", dataset="big") for n in range(8)]
    small = [story(n, name, "garage", dataset="small") for n, name in enumerate(["aligned", "conflict"])]
    other = [story(1, "conflict", "kitchen", dataset="conflict alone")]
    scores = subsets_of([*big, *small, *other])
    assert [own.dataset for own in scores] == ["big", "small", "conflict alone", AVERAGE]
    average = scores[-1]
    assert average.subsets["conflict"].n == 9
    assert average.subsets["conflict"].accuracy.mean == pytest.approx((2 / 8 + 1) / 2)
    assert average.subsets["conflict"].habit_rate.mean == pytest.approx((6 / 8 + 0) / 2)
    assert average.gap.mean == pytest.approx((6 / 8 + 0) / 2)


def test_what_is_told_first_has_both_subsets_if_any_has() -> None:
    both, conflict, gold = {"aligned": 30, "conflict": 20}, {"conflict": 30}, {"gold": 30}
    few = {"aligned": 19, "conflict": 20}
    assert headline([both, conflict, both, gold]) == 2
    assert headline([gold, both, conflict]) == 1
    assert headline([both, few]) == 0
    assert headline([few, gold]) == 0
    assert headline([conflict, gold]) == 0
    assert headline([gold, gold]) == 1


def test_an_average_leaves_out_datasets_with_few_rows() -> None:
    def rows(dataset: str, each: int, right: bool) -> list[Prediction]:
        said = "garage" if right else "attic"
        return [story(n, name, said, dataset=dataset) for name in ("aligned", "conflict") for n in range(each)]

    three = [*rows("one", 20, True), *rows("two", 30, True), *rows("three", 1, False)]
    assert subsets_of(three)[-1].subsets["conflict"].accuracy.mean == 1
    assert [own.dataset for own in subsets_of([*rows("one", 20, True), *rows("three", 1, False)])] == [
        "one",
        "three",
    ]


def says(answer: list[str], **changes: Any) -> Prediction:
    """An scq prediction between cup, spoon and fork."""
    options = ["a cup", "a spoon", "a fork"]
    return choice(1, False, **{"options": options, "answer": answer, "output": "(B)", **changes})


def test_the_answer_is_compared_with_the_habit_as_the_format_compares() -> None:
    assert says(["a spoon"]).gives(["Spoon"])
    assert not says(["a spoon"]).gives([])
    assert not says([]).gives(["a spoon"])
    sets = says(["a fork", "a spoon"], format="mcq")
    assert sets.gives(["a spoon", "a fork"])
    assert not sets.gives(["a spoon"])
    assert prediction(1, False).gives(["negative"])
    assert not prediction(1, False, extraction="none").gives(["negative"])


def test_a_letter_stands_for_its_option_and_a_label_is_contained_only_where_it_is_the_answer() -> None:
    assert says(["a spoon"], output="The correct option is: (B)").contains(["a spoon"])
    assert says([], output="Perhaps spoons").contains(["a spoon"]), "as characters: spoons contains spoon"
    assert not says([], output="A").contains(["The"]), "what normalises to nothing is contained in nothing"
    unsure = prediction(1, False, output="positive or negative", answer=["positive or negative"], extraction="none")
    assert not unsure.contains(["negative"])


@pytest.mark.parametrize("field", ["tokens", "characters"])
def test_a_likelihood_over_no_tokens_is_refused(field: str) -> None:
    """Its mean would divide by zero."""
    with pytest.raises(ValidationError, match=field):
        ScoredOption(**{"option": "a cup", "logprob": -1.0, "tokens": 2, "characters": 5, field: 0})


CONTEXT = "Goods may be returned within 30 days. A receipt is needed."


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Within 30 days.", 1.0),  # within, 30, days
        ("Within 60 days, with the receipt!", 3 / 4),  # within, days, receipt; not 60
        ("Ask my aunt.", 0.0),
        ("That is it.", None),  # function words alone
    ],
)
def test_answer_in_context(answer: str, share: float | None) -> None:
    assert answer_in_context(answer, CONTEXT) == share


def test_context_recall_asks_for_the_gold_words_of_the_context_alone() -> None:
    gold = ["Gladly: 30 days, with a receipt."]  # 30, days, receipt are the context's; gladly is not
    assert context_recall("30 days it is", gold, CONTEXT) == pytest.approx(2 / 3)
    assert context_recall("Gladly!", gold, CONTEXT) == 0
    assert context_recall("30", ["Gladly!"], CONTEXT) is None
    assert context_recall("a receipt", ["30 days", "receipt"], CONTEXT) == 1, "the nearest accepted answer counts"


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ("Within 30 days.", 1.0),
        ("A receipt is returned.", 1 / 2),  # both words are in the context, in two sentences
        ("Within 30 days. Ask my aunt.", (1 + 0) / 2),
        ("That is it.", None),
    ],
)
def test_claim_overlap_wants_the_words_of_a_sentence_in_one_place(answer: str, share: float | None) -> None:
    assert claim_overlap(answer, CONTEXT) == share


def test_a_long_qa_answer_is_shown_as_containing_the_accepted_one() -> None:
    context = "Many models of computation exist. The most commonly used model is the Turing machine."
    said = "The most common model of a computer is the Turing machine."
    answer = story(1, None, said, gold=["Turing machine", "the Turing machine"], context=context, habit=[])
    assert answer.exact_match == 0
    found = word_measures(answer)
    assert (found["contained"], found["context_recall"]) == (1, 1)
    assert found["answer_in_context"] == 4 / 6, "most, model, turing, machine; not common, computer"
    assert found["claim_overlap"] == 4 / 6
    assert "refusal" not in found
    assert word_measures(answer.model_copy(update={"answer": ["a machineTuring machines"]}))["contained"] == 0
    (group,) = score_predictions([answer]).groups
    assert (group.faithfulness["n"], group.faithfulness["contained"].mean) == (1, 1)


@pytest.mark.parametrize(
    ("gold", "subset", "lacks"),
    [
        (["the garage"], None, False),
        (["the attic"], None, True),
        (["the attic", "barn"], None, False),
        (["yes"], None, False),  # has no words to look for
        (["unknown"], "unanswerable", True),
        (["garage"], "unanswerable", True),
        (["the attic"], "irrelevant", False),
    ],
)
def test_a_context_lacks_the_answer_by_its_tag_or_its_words(gold: list[str], subset: str | None, lacks: bool) -> None:
    assert lacks_answer(story(1, subset, "kitchen", gold=gold)) == lacks


@pytest.mark.parametrize(
    ("context", "gold", "shares"),
    [
        ("He said: “The key is in the ‘barn’.”", "barn", 1),
        ("The key—barn—is lost.", "barn", 1),
        ("They met at Müller’s.", "Müller", 1),
        ("Anna's barn is red.", "Anna", 0),  # words of SQuAD join: annas
        ("费利克斯把钥匙放在谷仓里。", "谷仓", 1),
        ("费利克斯把钥匙放在谷仓里。", "在谷仓", 1),
        ("그는 부산으로 갔다.", "부산", 1),
        ("费利克斯把钥匙放在谷仓里。", "阁仓", None),  # one character is no word
        ("It is 12,736 m long, or 7.5 miles.", "12", None),
        ("It is 12,736 m long, or 7.5 miles.", "5", None),
    ],
)
def test_words_beside_marks_and_of_scripts_without_blanks_are_found(
    context: str, gold: str, shares: int | None
) -> None:
    row = story(1, None, gold, gold=[gold], context=context)
    assert lacks_answer(row) == (shares is None)
    if shares is not None:
        assert (answer_in_context(gold, context), claim_overlap(gold, context)) == (shares, shares)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("The context does not say.", True),
        ("It isn't mentioned in the text.", True),
        ("I don't know", True),
        ("The passage doesn’t say, and I donʼt know.", True),
        ("It’s not in the text!", True),
        ("This cannot be determined from the passage.", True),
        ("Unknown", True),
        ("There is not enough information.", True),
        ("the attic", False),
        ("It is no longer in the barn", False),
        ("He did not come", False),
        ("", False),
    ],
)
def test_refusals(answer: str, said: bool) -> None:
    assert refuses(answer, refusals_of([story(1, "unanswerable", "", gold=["It's not in the text"])])) == said


def test_right_and_wrong_refusals_and_the_rest() -> None:
    rows = [story(n, None, said, gold=["attic"]) for n, said in enumerate(["Not known.", "kitchen", "garage", "barn"])]
    rows += [story(9, None, "not known"), story(10, "unanswerable", "nobody can tell", gold=["nobody can tell"])]
    scores = score_predictions(rows).groups[0].faithfulness
    assert (scores["n"], scores["lacking"], scores["refusal"].mean) == (6, 5, 2 / 5)
    assert (scores["false_refusal"].mean, scores["answered"].mean) == (1, 0)
    # The benchmark's own refusal is one on all rows, also where it is no usual phrase.
    rows = [story(n, "gold", said) for n, said in enumerate(["N/A.", "the garage", "kitchen", "not known"])]
    rows += [story(9 + n, "unanswerable", said, gold=["n/a"]) for n, said in enumerate(["n/a", "garage", "unknown"])]
    scores = score_predictions(rows).groups[0].faithfulness
    shares = [scores[name].mean for name in ("refusal", "false_refusal", "answered")]
    assert shares == pytest.approx([2 / 3, 2 / 4, 1 / 4])
    kept = [scores[name].mean for name in ("answer_in_context", "claim_overlap")]
    assert kept == pytest.approx([2 / 5, 2 / 5]), (
        "a right refusal claims nothing; of the others both garages are there"
    )
    assert "false_refusal" not in score_predictions(rows[:4]).groups[0].faithfulness, "no row has a refusal as answer"


def test_a_right_answer_with_a_word_of_refusals_is_no_refusal() -> None:
    tomb = "Tomb of the Unknown Soldier"
    row = story(1, "gold", tomb, gold=[tomb], context=f"The {tomb} is here.", exact_match=1.0)
    assert word_measures(row, {"unknown"})["false_refusal"] == 0
    assert word_measures(row.model_copy(update={"exact_match": 0.0}), {"unknown"})["false_refusal"] == 1


def test_a_whole_output_is_the_answer_and_right_where_it_contains_the_gold_one() -> None:
    said = "<think>hm</think>\nYes, I can.\nWithin 30 days, dear customer."
    prediction = score_output(chat_sample(context=CONTEXT, answers=["Within 30 days."]), said, "")
    assert prediction.answer == ["Yes, I can.\nWithin 30 days, dear customer."]
    assert (prediction.extraction, prediction.right, prediction.exact_match) == ("strict", True, 0)
    scores = score_predictions([prediction])
    faithful = scores.groups[0].faithfulness
    assert faithful["answer_in_context"].mean == pytest.approx(3 / 5)  # 30, days, within; not dear, customer
    assert faithful["context_recall"].mean == 1


@pytest.mark.parametrize(
    ("gold", "output", "right"),
    [
        ("30 days", "It takes 130 days.", False),
        ("30 days", "It takes “30 days”—gladly.", True),
        ("no", "I do not know.", False),
        ("Anna", "It is Anna's, or Anna’s.", True),
        ("Ann", "It is Anna's.", False),
        ("eau", "C’est l'eau.", True),
        ("1990s", "In the 1990's.", True),
        ("can", "I can’t.", False),
        ("I don't know", "Sorry, I don’t know.", True),
        ("5", "It is -5 degrees.", False),
        ("99", "It costs €99.50.", False),
        ("99.50", "It costs €99.50.", True),
        ("30天", "需要130天。", False),
        ("谷仓", "钥匙放在谷仓里。", True),
        ("부산", "그는 부산으로 갔다.", True),
    ],
)
def test_a_chat_is_right_and_gives_its_habit_by_whole_words(gold: str, output: str, right: bool) -> None:
    prediction = score_output(chat_sample(context=CONTEXT, answers=[gold]), output, "")
    assert (prediction.right, prediction.gives([gold])) == (right, right)


def test_rows_of_other_formats_and_without_context_have_none() -> None:
    bare = score_output(chat_sample(context=""), "At nine.", "")
    assert score_predictions([choice(1, True), prediction(2, True), bare]).overall.faithfulness is None

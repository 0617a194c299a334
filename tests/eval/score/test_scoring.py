"""From an output to a prediction and its file: metrics by format and the likeliest option, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.answers import normalise, token_f1
from d2e_sft.util.errors import UserError
from eval.score.extract import Extraction
from eval.score.predictions import EventScores, Prediction, ScoredOption, read_predictions, write_predictions
from eval.score.scores import score_predictions
from eval.score.scoring import Normalise, likeliest, score_answer, score_events, score_likelihoods, score_output
from tests.factories import choice, prediction, story
from tests.tiny import make_sample


def test_an_output_becomes_a_prediction_that_keeps_sample_and_text() -> None:
    fields = {"format": "scq", "options": ["a cup", "a spoon"], "answers": ["a cup"]}
    sample = make_sample(1, **fields, subset="conflict", habit=["a spoon", "spoon"])
    read = score_output(sample, "The correct option is: (B)", "The correct option is:")
    assert (read.id, read.dataset, read.gold) == (sample.id, sample.dataset, ["a cup"])
    assert (read.output, read.subset, read.habit) == ("The correct option is: (B)", "conflict", ["a spoon", "spoon"])
    assert (read.answer, read.extraction, read.exact_match, read.f1) == (["a spoon"], "strict", 0.0, 0.0)


def test_answers_of_several_events_are_scored_as_a_set_too() -> None:
    events = ["Trees fell", "a roof flew off"]
    sample = make_sample(1, format="qa", answers=["Trees fell; a roof flew off", *events], options=[])
    tagged = sample.model_copy(update={"meta": {"spans": events, "triggers": ["fell", "flew"]}})
    read = score_output(tagged, "The answer is: Trees fell", "The answer is:")
    assert (read.exact_match, read.f1) == (1.0, 1.0)
    assert (read.events.exact_match, read.events.hit_at_1) == (0.0, 1.0)
    assert score_output(sample, "The answer is: Trees fell", "The answer is:").events is None


STEPS = ["walk home", "eat", "sleep"]  # of these walk home and sleep are correct; the gold order is not the prompt's


TEMPERATURES = ["-5", "5", "10"]
DOGS = ["the dog", "a dog", "the cat"]


@pytest.mark.parametrize(
    ("fmt", "options", "named", "gold", "scores"),
    [
        ("qa", STEPS, ("red house",), ["blue", "the red house"], (1, 1, None)),
        ("nli", STEPS, ("positive",), ["positive"], (1, 1, None)),
        ("nli", STEPS, ("negative",), ["positive"], (0, 0, None)),
        ("nli", STEPS, (), ["positive"], (0, 0, None)),
        ("scq", STEPS, ("He opened the door",), ["He closed the door"], (0, 2 / 3, None)),
        ("scq", STEPS, ("A",), ["The"], (0, 1, None)),  # both normalise to nothing, and stay apart
        ("mcq", STEPS, ("walk home", "sleep"), ["sleep", "walk home"], (1, 1, 1)),
        ("mcq", STEPS, ("sleep", "walk home"), ["sleep", "walk home"], (0, 1, 1)),  # another order than the prompt's
        # predicted: walk home (2 tokens); gold: walk home sleep (3); shared 2 → 2·2/5
        ("mcq", STEPS, ("walk home",), ["sleep", "walk home"], (0, 0.8, 0)),
        ("mcq", STEPS, ("walk home", "sleep", "eat"), ["sleep", "walk home"], (0, 6 / 7, 0)),
        ("mcq", STEPS, ("125",), ["12.5"], (0, 0, 0)),  # a decimal point keeps two options apart
        ("mcq", STEPS, ("1,000 times",), ["1000 times"], (0, 1, 0)),  # as do all signs: they are compared as written
        # Options that differ in a sign or an article are different answers.
        ("scq", TEMPERATURES, ("5",), ["-5"], (0, 0, None)),
        ("scq", TEMPERATURES, ("-5",), ["-5"], (1, 1, None)),
        ("scq", DOGS, ("a dog",), ["the dog"], (0, 0, None)),
        ("scq", ["C", "C#", "Go"], ("C",), ["C#"], (0, 0, None)),
        ("scq", ["12.5", "125"], ("125",), ["12.5"], (0, 0, None)),
        ("scq", ["A", "The"], ("A",), ["The"], (0, 0, None)),
        ("mcq", TEMPERATURES, ("5", "10"), ["-5", "10"], (0, 0.5, 0)),  # 10 of two and two
        ("mcq", TEMPERATURES, ("10", "-5"), ["-5", "10"], (0, 1, 1)),
        # Both are correct, so F1 compares words, as it is published: one of two.
        ("mcq", DOGS, ("a dog",), ["the dog", "a dog"], (0, 2 / 3, 0)),
        ("mcq", DOGS, ("the dog", "a dog"), ["the dog", "a dog"], (1, 1, 1)),
    ],
)
def test_each_format_has_its_metrics(
    fmt: str, options: list[str], named: tuple[str, ...], gold: list[str], scores: tuple[float, float, float | None]
) -> None:
    found = score_answer(fmt, Extraction(named, "strict"), gold, options)
    assert found == tuple(None if score is None else pytest.approx(score) for score in scores)


def test_an_output_that_fits_several_options_is_wrong_and_counted() -> None:
    sample = make_sample(1, format="scq", options=DOGS, answers=["the dog"])
    outputs = ["dog", "I saw the dog", "a mouse", "(A) a dog"]
    rows = [score_output(sample, f"The correct option is: {text}", "The correct option is:") for text in outputs]
    assert [row.ambiguous for row in rows] == [True, None, None, True]
    assert [(row.exact_match, row.f1) for row in rows if row.ambiguous] == [(0, 0), (0, 0)]
    overall = score_predictions(rows).content()["overall"]
    assert (overall["ambiguous"], overall["extraction"]["none"]) == (0.5, 0.75)
    assert "ambiguous" not in score_predictions(rows[1:3]).content()["overall"]
    hedged = make_sample(1, format="scq", options=["the red barn", "the old barn"], answers=["the red barn"])
    both = score_output(hedged, "The correct option is: the red barn or the old barn", "The correct option is:")
    assert (both.ambiguous, both.exact_match, both.f1) == (True, 0, 0)


def test_no_answer_is_wrong_even_where_the_answer_is_an_article() -> None:
    sample = make_sample(1, format="qa", answers=["A"])
    scores = [score_output(sample, text, "The answer is:").mean for text in ("", "The answer is:", "The answer is: A")]
    assert scores == [0, 0, 1]


def test_a_habit_that_differs_in_a_sign_is_another_answer() -> None:
    def said(text: str, fmt: str = "scq") -> Prediction:
        options = [] if fmt == "qa" else TEMPERATURES
        sample = make_sample(1, format=fmt, options=options, answers=["-5"], subset="conflict", habit=["5"])
        return score_output(sample, f"The answer is: {text}", "The answer is:")

    right, habit = said("-5"), said("5")
    assert (right.right, right.gives(["5"]), right.contains(["5"])) == (True, False, False)
    assert (habit.right, habit.gives(["5"]), habit.contains(["-5"])) == (False, True, False)
    assert habit.gives(["(B) 5"]), "a habit in other words is matched to the options first"
    assert not said("5 or -5").gives(["5"])
    for fmt in ("scq", "qa"):
        assert not said("5", fmt).says_same(["-5"])
        assert said("5", fmt).says_same(["5"])
    assert said("The 1,000 men", "qa").says_same(["1000 men."])


def test_an_answer_that_was_not_parsed_is_wrong_in_nli() -> None:
    assert score_answer("nli", Extraction(("positive",), "none"), ["positive"])[:2] == (0.0, 0.0)


PROMPTS = load_prompt_set("default")
# "(A) a cup" has 9 characters, "(B) a big spoon" 15, "(C) salt" 8.
OPTIONS = ["a cup", "a big spoon", "salt"]


def scored(scores: list[tuple[float, int]], normalise: Normalise = "none", **changes: Any) -> Prediction:
    fields = {"format": "scq", "options": OPTIONS, "answers": ["a big spoon"], **changes}
    return score_likelihoods(make_sample(1, **fields), scores, PROMPTS, normalise)


@pytest.mark.parametrize(
    ("normalise", "chosen"),
    [
        ("none", "a cup"),  # −3.6, −4.5, −4.0
        ("tokens", "salt"),  # −1.2, −1.5, −1.0
        ("characters", "a big spoon"),  # −0.4, −0.3, −0.5
    ],
)
def test_the_length_decides_which_option_is_the_likeliest(normalise: Normalise, chosen: str) -> None:
    read = scored([(-3.6, 3), (-4.5, 3), (-4.0, 4)], normalise)
    assert read.answer == [chosen]
    assert read.output == f"The correct option is: ({'ABC'[OPTIONS.index(chosen)]}) {chosen}"
    assert (read.exact_match, read.extraction) == (float(chosen == "a big spoon"), "strict")
    assert (read.acc, read.acc_norm) == (0.0, 1.0), "both are kept, whatever the answer was chosen by"
    assert [(option.option, option.tokens, option.characters) for option in read.likelihoods] == [
        ("a cup", 3, 9),
        ("a big spoon", 3, 15),
        ("salt", 4, 8),
    ]


def test_a_tie_goes_to_the_option_that_comes_first() -> None:
    options = [ScoredOption(option=text, logprob=-2.0, tokens=2, characters=8) for text in ("one", "two")]
    assert [likeliest(options, rule) for rule in ("none", "tokens", "characters")] == [0, 0, 0]  # type: ignore[arg-type]
    assert likeliest([options[0], options[1].model_copy(update={"logprob": -1.9})], "none") == 1


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_exact_match_is_acc_where_one_option_is_correct(chosen: int) -> None:
    for options in (TEMPERATURES, DOGS, ["C", "C#", "C++"]):
        scores = [(-1.0 if place == chosen else -9.0, 1) for place in range(3)]
        read = scored(scores, options=options, answers=options[:1])
        assert (read.exact_match, read.f1) == (read.acc, read.acc) == ((chosen == 0),) * 2


def test_nli_chooses_between_the_labels() -> None:
    read = scored([(-2.0, 1), (-1.0, 1)], format="nli", options=[], answers=["negative"])
    assert (read.answer, read.output, read.exact_match, read.acc) == (["negative"], "The answer is: negative", 1, 1)


def test_of_several_correct_options_the_likeliest_alone_is_the_answer() -> None:
    read = scored([(-1.0, 1), (-2.0, 1), (-30.0, 1)], format="mcq", answers=["a cup", "salt"])
    assert (read.answer, read.acc, read.acc_norm) == (["a cup"], 1.0, 1.0)
    assert (read.exact_match, read.set_accuracy) == (0.0, 0.0), "which ask for both"


def test_scores_have_both_accuracies_and_those_of_generated_answers_neither() -> None:
    wrong, right = scored([(-1.0, 3), (-2.0, 3), (-3.0, 4)]), scored([(-3.0, 3), (-2.0, 3), (-3.0, 4)])
    overall = score_predictions([wrong, right, right, right]).content()["overall"]
    assert (overall["acc"]["mean"], overall["acc_norm"]["mean"]) == (0.75, 0.75)
    generated = wrong.model_copy(update={"likelihoods": None, "acc": None, "acc_norm": None})
    assert not {"acc", "acc_norm"} & score_predictions([generated]).content()["overall"].keys()


def test_normalising_drops_case_punctuation_articles_and_extra_space() -> None:
    assert normalise("  The  U.S. Army's\tAN answer, a  test! ") == "us armys answer test"
    assert normalise("Theatre and another") == "theatre and another"  # articles are whole words


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("the cat sat", ["cat sat down"], 0.8),  # P 2/2, R 2/3
        ("big big dog", ["big dog dog"], 2 / 3),  # bag: big 1 + dog 1 of 3 and 3
        ("x y", ["a b c", "x"], 2 / 3),  # best of the golds: P 1/2, R 1/1
        ("cat", ["dog"], 0.0),
        ("", [""], 1.0),
        ("the", [""], 1.0),  # an article normalises to nothing
        ("", ["cat"], 0.0),
        ("cat", ["the"], 0.0),
        ("€ 99.99", ["€ 9,999"], 0.5),  # the sign of the currency
        ("EUR -500", ["EUR 500"], 0.5),
        ("€5,124.", ["€ 5124"], 1.0),
    ],
)
def test_token_f1_equals_the_hand_worked_value(prediction: str, golds: list[str], expected: float) -> None:
    assert token_f1(prediction, golds) == pytest.approx(expected)


GOLD = ["Trees fell", "a roof flew off"]
TRIGGERS = ["fell", "flew"]


@pytest.mark.parametrize(
    ("answer", "token_f1", "event_f1", "hit", "exact"),
    [
        ("a roof flew off; Trees fell", 1, 1, 1, 1),  # the order does not count
        ("Trees fell;a roof flew off", 1, 1, 1, 1),  # nor do blanks at the separator
        ("Trees fell", 2 * (2 / 6) / (1 + 2 / 6), 2 * 0.5 / 1.5, 1, 0),  # precision 1, recall 2/6 and 1/2
        ("it rained; Trees fell", 2 * (2 / 6) * (2 / 4) / (2 / 6 + 2 / 4), 0.5, 0, 0),  # hit counts the first alone
        ("Trees fell and a roof flew off", 2 * (6 / 7) / (6 / 7 + 1), 1, 1, 0),  # both triggers in one event
        ("trees fell!", 2 * (1 / 6) * (1 / 2) / (1 / 6 + 1 / 2), 2 * 0.5 / 1.5, 1, 0),  # letter case counts
        ("It hailed", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_all_events_are_asked_for(answer: str, token_f1: float, event_f1: float, hit: float, exact: float) -> None:
    scores = score_events(answer, GOLD, TRIGGERS)
    assert scores.model_dump() == pytest.approx(
        {"token_f1": token_f1, "event_f1": event_f1, "hit_at_1": hit, "exact_match": exact}
    )


def test_punctuation_that_stands_alone_is_an_empty_token() -> None:
    # "a - b" gives a, "" and b: 2 of 3 tokens are right, and all of the gold ones are there
    assert score_events("a - b", ["a b"], []).token_f1 == pytest.approx(0.8)


def test_without_triggers_no_event_is_found() -> None:
    assert score_events("a", ["a"], []) == EventScores(token_f1=1, event_f1=0, hit_at_1=0, exact_match=1)


def test_predictions_read_back_as_written_one_a_line_with_tags_where_a_row_has_them(tmp_path: Path) -> None:
    rows = [prediction(1, True, output="two\nlines\u2028and an é"), story(2, "conflict", "kitchen")]
    rows += [story(3, "gold", "garage", habit=[])]
    file = tmp_path / "new" / "predictions.jsonl"
    write_predictions(rows, file)
    assert read_predictions(file, foreign=True) == rows
    untagged, tagged, without_habit = map(json.loads, file.read_bytes().splitlines())
    assert not {"subset", "habit"} & untagged.keys()
    assert (tagged["habit"], "habit" in without_habit) == (["kitchen"], False)


@pytest.mark.parametrize("damage", ['{"id": "s2", "data', "[1]", '{"id": "s2"}', "\udcff"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "predictions.jsonl"
    good = prediction(1, True).model_dump_json()
    file.write_text(f"{good}\n{damage}\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=r"predictions\.jsonl, line 2"):
        read_predictions(file, foreign=True)


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_predictions(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="no prediction"):
        read_predictions(tmp_path / "empty.jsonl", foreign=True)


def test_an_answer_is_right_by_exact_match_and_for_mcq_by_its_set() -> None:
    assert prediction(1, True).right
    assert not prediction(1, False, f1=0.9).right
    reordered = choice(1, True, format="mcq", exact_match=0.0, f1=1.0, set_accuracy=1.0)
    assert reordered.right
    assert reordered.mean == 0.5

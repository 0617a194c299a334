"""How the metrics apply to each format, against hand-worked values."""

from __future__ import annotations

import pytest

from eval.score.extract import Extraction
from eval.score.scoring import score_answer, score_output
from tests.tiny import make_sample


def test_an_output_becomes_a_prediction_that_keeps_sample_and_text() -> None:
    sample = make_sample(1, format="scq", options=["a cup", "a spoon"], answers=["a cup"])
    read = score_output(sample, "The correct option is: (B)", "The correct option is:")
    assert (read.id, read.dataset, read.gold, read.output) == (
        sample.id,
        sample.dataset,
        ["a cup"],
        "The correct option is: (B)",
    )
    assert (read.answer, read.extraction, read.exact_match, read.f1) == (["a spoon"], "strict", 0.0, 0.0)


def test_a_prediction_keeps_its_sample_s_subset_and_habit() -> None:
    sample = make_sample(1, subset="conflict", habit=["the lake", "lake"])
    read = score_output(sample, "The answer is: the lake", "The answer is:")
    assert (read.subset, read.habit) == ("conflict", ["the lake", "lake"])
    assert (score_output(make_sample(1), "x", "The answer is:").subset) is None


def test_answers_of_several_events_are_scored_as_a_set_too() -> None:
    events = ["Trees fell", "a roof flew off"]
    sample = make_sample(1, format="qa", answers=["Trees fell; a roof flew off", *events], options=[])
    tagged = sample.model_copy(update={"meta": {"spans": events, "triggers": ["fell", "flew"]}})
    read = score_output(tagged, "The answer is: Trees fell", "The answer is:")
    assert (read.exact_match, read.f1) == (1.0, 1.0)
    assert read.events is not None
    assert (read.events.exact_match, read.events.hit_at_1) == (0.0, 1.0)
    assert score_output(sample, "The answer is: Trees fell", "The answer is:").events is None


STEPS = ["walk home", "eat", "sleep"]  # of these walk home and sleep are correct; the gold order is not the prompt's


@pytest.mark.parametrize(
    ("fmt", "named", "gold", "scores"),
    [
        ("qa", ("red house",), ["blue", "the red house"], (1, 1, None)),
        ("nli", ("positive",), ["positive"], (1, 1, None)),
        ("nli", ("negative",), ["positive"], (0, 0, None)),
        ("nli", (), ["positive"], (0, 0, None)),
        ("scq", ("He opened the door",), ["He closed the door"], (0, 2 / 3, None)),
        ("scq", ("A",), ["The"], (0, 1, None)),  # both normalise to nothing, and stay apart
        ("mcq", ("walk home", "sleep"), ["sleep", "walk home"], (1, 1, 1)),
        ("mcq", ("sleep", "walk home"), ["sleep", "walk home"], (0, 1, 1)),  # another order than the prompt's
        # predicted: walk home (2 tokens); gold: walk home sleep (3); shared 2 → 2·2/5
        ("mcq", ("walk home",), ["sleep", "walk home"], (0, 0.8, 0)),
        ("mcq", ("walk home", "sleep", "eat"), ["sleep", "walk home"], (0, 6 / 7, 0)),
        ("mcq", ("125",), ["12.5"], (0, 1, 0)),  # a decimal point keeps two options apart
        ("mcq", ("1,000 times",), ["1000 times"], (1, 1, 1)),
    ],
)
def test_each_format_has_its_metrics(
    fmt: str, named: tuple[str, ...], gold: list[str], scores: tuple[float, float, float | None]
) -> None:
    found = score_answer(fmt, Extraction(named, "strict"), gold, STEPS)
    assert found == tuple(None if score is None else pytest.approx(score) for score in scores)


def test_an_answer_that_was_not_parsed_is_wrong_in_nli() -> None:
    assert score_answer("nli", Extraction(("positive",), "none"), ["positive"])[:2] == (0.0, 0.0)

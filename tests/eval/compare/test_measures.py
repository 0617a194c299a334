"""Measures: what counts, the file that keeps them, and results side by side as comparison, table and LaTeX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import Comparison, Score, compare_measures
from eval.compare.measures import measure_scores, measures_latex
from eval.compare.verdicts import terminal_text, verdicts
from eval.score.measures import MEASURES_FILE, measure, read_measures, shares, write_measures
from eval.score.statistics import holm, paired_average
from tests.eval.compare.rows import accuracy


def test_items_that_count_nothing_are_left_out_and_a_measure_of_nothing_is_none() -> None:
    [found] = measure("changed", "share", "states", "g", {"1": (1, 2), "2": (0, 0)})
    assert found.counts == {"1": (1, 2)}
    assert found.interval.mean == 0.5
    assert measure("changed", "share", "states", "g", {"1": (0, 0)}) == []
    assert shares("accuracy", "questions", "g", {}) == []


def test_what_is_written_is_read_and_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no measures\.json(.|\n)*without decoding"):
        read_measures(tmp_path)
    measures = [*accuracy([1, 0, 0.5]), *accuracy([1, 1, 0], name="other")]
    write_measures(measures, tmp_path)
    assert read_measures(tmp_path) == measures


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[1]",
        '[{"name": "a", "form": "mean", "unit": "q", "gold": "g", "counts": {"1": [1, 1]}}]',
        '[{"name": "a", "form": "share", "unit": "q", "gold": "g", "counts": {"1": [1, 1], "2": [1]}}]',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / MEASURES_FILE).write_text(text)
    with pytest.raises(UserError, match=r"measures\.json: not a list of measures"):
        read_measures(tmp_path)


RNG = np.random.default_rng(0)
A, B, C = (list((RNG.random(80) < p).astype(float)) for p in (0.4, 0.6, 0.7))


def scores(comparison: Comparison) -> dict[str, list[Score]]:
    return {name: own for (name, _), own in measure_scores(comparison).items()}


def test_the_headline_is_corrected_for_results_and_the_rest_for_results_and_measures() -> None:
    def measures(values: list[float]) -> list:
        return [one for name in ("accuracy", "second", "third") for one in accuracy(values, name=name)]

    found = compare_measures("wiqa", {"a": measures(A), "b": measures(B), "c": measures(C)})
    plain = [paired_average([A], [other]) for other in (B, C)]
    for name, times in (("accuracy", 1), ("second", 2)):
        changes = [score.change for score in scores(found)[name][1:]]
        assert [change.mean for change in changes] == pytest.approx([change.mean for change in plain])
        expected = holm([change.p_value for change in plain] * times)[:2]
        assert [change.adjusted_p for change in changes] == pytest.approx(expected, abs=0.03)
    (row, *_) = found.to_json()["scores"]
    assert (row["measure"], row["unit"], row["run"], row["mean"]) == ("accuracy", "questions", "a", np.mean(A))


def test_items_are_paired_by_their_ids_and_not_by_their_order() -> None:
    [measure] = accuracy(B)
    turned = measure.model_copy(update={"counts": dict(reversed(measure.counts.items()))})
    one, other = (compare_measures("wiqa", {"a": accuracy(A), "b": [own]}) for own in (measure, turned))
    assert scores(one) == scores(other)


def test_measures_that_not_all_have_are_named() -> None:
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": accuracy(B)})
    assert (list(scores(found)), found.left_out) == (["accuracy"], ("more",))
    shorter = accuracy(B[:5], name="more")  # a later measure may be of fewer items, as a correlation that is undefined
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": [*accuracy(B), *shorter]})
    assert found.left_out == ("more",)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (accuracy(B[:70]), r"a \(80 questions\) and b \(70\) are about different questions: 10 are"),
        (accuracy(B, gold="another"), "against different gold answers"),
        (accuracy(B, name="F1"), "no measure in common"),
        ([], "none item by item"),
    ],
)
def test_results_that_do_not_fit_are_refused(other: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare_measures("wiqa", {"a": accuracy(A), "b": other})


RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 10 + [0.0] * 30
FOUND = compare_measures("wiqa", {"a_1": accuracy(WRONG), "b & c": accuracy(RIGHT)})


def test_a_measure_is_a_block_and_a_verdict_follows() -> None:
    text = terminal_text(FOUND)
    for part in ("accuracy (40)", "a_1    25.0 [", "b & c  75.0 [", "+50.0 ["):
        assert part in text
    (verdict,) = verdicts(FOUND)
    assert verdict.startswith("b & c against a_1: accuracy +50.0 [")
    assert verdict.endswith("p <0.001: higher with 40 questions")
    undecided = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy([*RIGHT[1:], 1.0])})
    assert verdicts(undecided)[0].endswith("not decided with 40 questions")
    alone = terminal_text(compare_measures("wiqa", {"a": accuracy(RIGHT)}))
    assert not {"Δ", "against"} & set(alone.split()), "one result has scores, but no differences"


def test_latex_marks_the_best_and_the_significant() -> None:
    lines = measures_latex(FOUND).splitlines()
    [row] = [line for line in lines if line.startswith(r"b \& c &")]
    assert r"\textbf{75.0}\textsuperscript{\dag} {\scriptsize $\pm$" in row
    [first] = [line for line in lines if line.startswith(r"a\_1 &")]
    assert r"\textbf" not in first
    equal = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy(RIGHT)})
    assert r"\textbf" not in measures_latex(equal)

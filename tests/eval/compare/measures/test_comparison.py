"""Results side by side: what is paired, corrected, left out and refused."""

from __future__ import annotations

import numpy as np
import pytest

from d2e_sft.util.errors import UserError
from eval.compare.measures.comparison import compare_measures
from eval.score.statistics import holm, paired_average
from tests.eval.compare.measures.results import accuracy

RNG = np.random.default_rng(0)
A, B, C = (list((RNG.random(80) < p).astype(float)) for p in (0.4, 0.6, 0.7))


def test_the_headline_is_corrected_for_results_and_the_rest_for_results_and_measures() -> None:
    def measures(values: list[float]) -> list:
        return [one for name in ("accuracy", "second", "third") for one in accuracy(values, name=name)]

    found = compare_measures("wiqa", {"a": measures(A), "b": measures(B), "c": measures(C)})
    plain = [paired_average([A], [other]) for other in (B, C)]
    assert [change.mean for change in found.rows[0].changes] == pytest.approx([change.mean for change in plain])
    for row, family in ((found.rows[0], plain), (found.rows[1], plain * 2)):
        expected = [change.adjusted_p for change in holm(family)[:2]]
        assert [change.adjusted_p for change in row.changes] == pytest.approx(expected, abs=0.03)
    assert found.to_json()["rows"][0]["scores"][0]["mean"] == pytest.approx(np.mean(A))


def test_items_are_paired_by_their_ids_and_not_by_their_order() -> None:
    [measure] = accuracy(B)
    turned = measure.model_copy(update={"counts": dict(reversed(measure.counts.items()))})
    one = compare_measures("wiqa", {"a": accuracy(A), "b": [measure]})
    assert one == compare_measures("wiqa", {"a": accuracy(A), "b": [turned]})


def test_measures_that_not_all_have_are_named() -> None:
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": accuracy(B)})
    assert ([row.name for row in found.rows], found.left_out) == (["accuracy"], ("more",))
    shorter = accuracy(B[:5], name="more")  # a later measure may be of fewer items, as a correlation that is undefined
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": [*accuracy(B), *shorter]})
    assert found.left_out == ("more",)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (accuracy(B[:70]), r"different questions: 10 are in one only, such as 'q70'"),
        (accuracy(B, gold="another"), "against different gold answers"),
        (accuracy(B, name="F1"), "no measure in common"),
        ([], "none item by item"),
    ],
)
def test_results_that_do_not_fit_are_refused(other: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare_measures("wiqa", {"a": accuracy(A), "b": other})

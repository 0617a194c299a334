"""Which result the runs share: of rows, of a system, of lm-eval; and what is said where it is not settled."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.measures.runs import compare_runs_by_measures, load_measured
from eval.compare.runs import load_runs, reference_first
from tests.eval.compare.measures.results import accuracy, save_result


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    values = {"sft": [1, 0, 0], "d2e": [1, 1, 0]}
    return [save_result(tmp_path / name, accuracy(right)) for name, right in values.items()]


def test_the_only_system_that_all_runs_share_is_taken(runs: list[Path]) -> None:
    save_result(runs[0].parent / "sft2", accuracy([1, 0, 0]), bench="crepe")
    loaded = load_measured(runs)
    assert loaded is not None
    assert [(run.label, run.bench) for run in loaded] == [("sft", "wiqa"), ("d2e", "wiqa")]
    assert compare_runs_by_measures(loaded).rows[0].changes[0].mean == pytest.approx(1 / 3)
    assert [run.label for run in reference_first(loaded, "d2e")] == ["d2e", "sft"]


def test_several_shared_ones_must_be_chosen_from(runs: list[Path], tmp_path: Path) -> None:
    for run in runs:
        save_result(run, accuracy([1, 1, 1]), bench="wiqa-paragraph=no")
    with pytest.raises(UserError, match="share 2 benchmarks: wiqa, wiqa-paragraph=no"):
        load_measured(runs)
    loaded = load_measured(runs, "wiqa-paragraph=no")
    assert loaded is not None
    assert loaded[0].measures[0].interval.mean == 1
    variants = load_measured([runs[0] / "eval" / "wiqa", runs[0] / "eval" / "wiqa-paragraph=no"])
    assert variants is not None
    assert [run.label for run in variants] == ["wiqa", "wiqa-paragraph=no"], "folders of results"


def test_runs_without_a_shared_system_are_left_to_the_reader_of_rows(runs: list[Path], tmp_path: Path) -> None:
    other = save_result(tmp_path / "other", accuracy([1]), bench="crepe")
    assert load_measured([runs[0], other]) is None
    with pytest.raises(UserError, match="scored only on wiqa, by their own scorers") as caught:
        load_runs([runs[0], other])
    assert "--bench wiqa" in str(caught.value.remedy)

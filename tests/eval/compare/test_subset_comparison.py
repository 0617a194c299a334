"""Runs by subset: differences pair by sample, and a verdict follows from both of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.compare.subset_comparison import RunSubsets, SubsetComparison, compare_subsets
from eval.score.predictions import Prediction
from eval.score.statistics import Difference, paired_average
from eval.score.subsets import AVERAGE, DatasetSubsets
from tests.command import output_of
from tests.factories import choice, make_run, prediction, story, write_recorded


def habit_rows(aligned: int, conflict: int, *, dataset: str = "habit", of: int = 40) -> list[Prediction]:
    """So many right of each subset's `of` rows; wrong conflict rows are answered with the habit."""
    rows = [
        story(n, "aligned", "garage" if n < aligned else "attic", habit="garage", dataset=dataset) for n in range(of)
    ]
    return rows + [
        story(1000 + n, "conflict", "garage" if n < conflict else "kitchen", dataset=dataset) for n in range(of)
    ]


def compared(folder: Path, **runs: list[Prediction]) -> SubsetComparison:
    return compare_subsets(load_runs([make_run(folder / name, rows) for name, rows in runs.items()]))


def test_runs_without_tags_have_no_measures_by_subset(tmp_path: Path) -> None:
    assert compare_subsets(load_runs([make_run(tmp_path / "run", [prediction(1, True)])])) is None


def test_differences_pair_by_sample_whatever_the_order_of_the_file(tmp_path: Path) -> None:
    other = list(reversed(habit_rows(36, 28)))
    comparison = compared(tmp_path, sft=habit_rows(38, 16), d2e=other)
    reference, run = comparison.datasets[0].runs
    assert reference.changes == {}
    conflict, direct = run.changes["conflict"], paired_average([[1.0] * 16 + [0.0] * 24], [[1.0] * 28 + [0.0] * 12])
    assert (conflict.mean, conflict.low, conflict.high) == (direct.mean, direct.low, direct.high)
    assert run.changes["aligned"].mean == pytest.approx(-2 / 40)
    assert conflict.adjusted_p == pytest.approx(2 * conflict.p_value), "two subsets of one run"


def test_p_values_are_corrected_for_all_runs_and_subsets_of_a_dataset(tmp_path: Path) -> None:
    comparison = compared(tmp_path, sft=habit_rows(38, 16), a=habit_rows(38, 23), b=habit_rows(38, 24))
    changes = [run.changes["conflict"] for run in comparison.datasets[0].runs[1:]]
    smallest = min(change.p_value for change in changes)
    assert changes[1].p_value == smallest
    assert changes[1].adjusted_p == pytest.approx(4 * smallest)


def test_the_average_is_the_headline_and_weighs_datasets_alike(tmp_path: Path) -> None:
    lone = [story(n, "conflict", "garage", dataset="proverbs") for n in range(20)]
    rows = {
        "sft": [*habit_rows(40, 0), *habit_rows(20, 5, dataset="news", of=20), *lone, prediction(1, True)],
        "d2e": [*habit_rows(40, 20), *habit_rows(20, 5, dataset="news", of=20), *lone, prediction(1, True)],
    }
    comparison = compared(tmp_path, **rows)
    assert comparison.untagged == 1
    assert [own.dataset for own in comparison.datasets] == ["habit", "news", "proverbs", AVERAGE]
    assert comparison.headline.dataset == AVERAGE
    assert comparison.headline.sizes == {"aligned": 60, "conflict": 60}
    assert comparison.headline.runs[1].changes["conflict"].mean == pytest.approx((20 / 40 + 0) / 2)


def test_a_run_scored_before_rows_had_tags_is_refused_by_name(tmp_path: Path) -> None:
    rows = habit_rows(3, 3, of=4)
    untagged = [row.model_copy(update={"subset": None, "habit": []}) for row in rows]
    runs = [make_run(tmp_path / "new", rows), make_run(tmp_path / "old", untagged)]
    with pytest.raises(UserError, match=r"old.*sample 's0' of habit has the subset None.*aligned"):
        compare_subsets(load_runs(runs))


def test_the_models_own_habit_is_measured_without_the_contexts(tmp_path: Path) -> None:
    # 20 conflict rows, ten right. Unread, 15 are answered with the habit; the first five of these are right.
    rows = habit_rows(20, 10, of=20)
    unread = {1000 + n: "attic" if 5 <= n < 10 else "kitchen" for n in range(20)}
    run = make_run(tmp_path / "run", rows)
    without = [row for row in rows if row.subset == "aligned"] + [story(n, "conflict", s) for n, s in unread.items()]
    write_recorded(without, run / "eval" / "mini" / "without_context.jsonl")
    assert re.search(r"^run +75\.0 \[.*\] +15 +33\.3 \[", output_of("compare", run), flags=re.MULTILINE)
    right = habit_rows(20, 20, of=20)
    never = make_run(tmp_path / "never", right)
    write_recorded(right, never / "eval" / "mini" / "without_context.jsonl")
    for folder, expected in ((run, (0.75, 15, pytest.approx(1 / 3))), (never, (0.0, 0, None))):
        comparison = compare_subsets(load_runs([folder]))
        own = comparison.headline.runs[0].own_habit
        assert (own.rate.mean, own.n, own.accuracy and own.accuracy.mean) == expected


Values = tuple[float, float, float, float]


def verdict(conflict: Values, aligned: Values | None) -> str:
    """The verdict of changes given as mean, low, high, corrected p."""
    given = {"conflict": conflict, "aligned": aligned}
    changes = {name: Difference(*own, adjusted_p=own[3]) for name, own in given.items() if own is not None}
    return RunSubsets("d2e", DatasetSubsets.model_construct(), changes, None).verdict  # type: ignore[arg-type]


HIGHER, LOWER, OPEN = (0.2, 0.1, 0.3, 0.001), (-0.2, -0.3, -0.1, 0.001), (0.0, -0.1, 0.1, 1.0)
KEPT, EQUAL = (0.01, -0.02, 0.04, 0.7), (0.0, -0.02, 0.02, 1.0)


@pytest.mark.parametrize(
    ("conflict", "aligned", "said"),
    [
        (HIGHER, KEPT, "uses the context more"),
        (HIGHER, None, "uses the context more"),
        (HIGHER, HIGHER, "uses the context more"),
        (HIGHER, OPEN, "conflict higher, aligned not decided"),
        (HIGHER, LOWER, "conflict higher, aligned lower"),
        (LOWER, HIGHER, "uses the context less"),
        (OPEN, KEPT, "not decided"),
        (OPEN, LOWER, "aligned lower, conflict not decided"),
        (EQUAL, EQUAL, "no difference"),
        (EQUAL, KEPT, "not decided"),
    ],
)
def test_a_verdict_follows_from_both_changes(conflict: Values, aligned: Values | None, said: str) -> None:
    assert verdict(conflict, aligned) == said


def test_of_few_samples_equal_answers_do_not_decide_that_there_is_no_difference(tmp_path: Path) -> None:
    for of, said in ((121, "not decided"), (122, "no difference")):  # 0.97 ** 122 is below 0.025
        rows = habit_rows(of, 9, of=of)
        comparison = compared(tmp_path / str(of), one=rows, other=rows)
        assert comparison.headline.runs[1].verdict == said


def test_a_subset_of_few_rows_is_counted_and_not_compared(tmp_path: Path) -> None:
    runs = {
        name: [*habit_rows(3, right, of=20)[1:], *[prediction(n, True) for n in range(38)]]
        for name, right in (("sft", 16), ("d2e", 20))
    }
    paths = [make_run(tmp_path / name, rows) for name, rows in runs.items()]
    comparison = compare_runs(load_runs(paths))
    assert comparison.subsets.headline.sizes == {"conflict": 20}
    assert [(one.subset, one.n, one.right) for one in comparison.small_subsets] == [
        ("aligned", 19, {"sft": 2, "d2e": 2})
    ]
    assert not comparison.is_about_subsets, "20 of 77 rows"
    printed = output_of("compare", *paths, "--json", tmp_path / "c.json")
    order = ["all (77)", "By subset (habit 20 conflict)", "d2e against sft: mean", "d2e against sft: conflict +20.0"]
    assert [printed.index(part) for part in order] == sorted(printed.index(part) for part in order)
    assert printed.endswith(
        "Too few rows to compare by subset (fewer than 20): habit, aligned, 19 rows, right: sft 2, d2e 2. "
        "A larger `test`, or d2e data build --swap-test 1, gives more.\n"
    )
    assert json.loads((tmp_path / "c.json").read_text())["small_subsets"][0]["right"] == {"sft": 2, "d2e": 2}


def test_two_tagged_rows_do_not_hide_the_result_on_the_others(tmp_path: Path) -> None:
    tagged = [story(200, "aligned", "attic"), story(201, "conflict", "attic")]
    rights = {"sft": 30, "d2e": 55}
    paths = [
        make_run(tmp_path / name, [*tagged, *[choice(n, n < right) for n in range(100)]])
        for name, right in rights.items()
    ]
    printed = output_of("compare", *paths)
    assert "conflict +" not in printed
    assert "d2e against sft: mean +24.5 [" in printed
    assert "habit, conflict, 1 row, right: sft 0, d2e 0." in printed
    half = [*habit_rows(20, 20, of=20), *[choice(n, True) for n in range(40)]]
    (run,) = load_runs([make_run(tmp_path / "half", half)])
    assert compare_runs([run]).is_about_subsets, "40 of 80 rows"

"""Run folders that do not fit together, or are damaged, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs, only_subset, reference_first
from eval.score.scores import score_predictions
from tests.factories import choice, make_run, prediction, story


def test_runs_of_one_name_are_told_apart_by_their_path(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    runs = [make_run(tmp_path / name, rows) for name in ("x/seed/run", "y/seed/run", "y/other")]
    assert [run.label for run in load_runs(runs)] == ["x/seed/run", "y/seed/run", "other"]


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [prediction(1, True)])
    with pytest.raises(UserError, match="twice"):
        load_runs([run, tmp_path / "." / "run"])


def test_different_benchmark_files_are_refused_by_name(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    runs = [make_run(tmp_path / name, rows, sha256=name * 64) for name in ("a", "b")]
    with pytest.raises(UserError, match="different benchmarks") as error:
        load_runs(runs)
    assert all(str(run) in str(error.value) for run in runs)
    assert all(name * 64 in str(error.value) for name in "ab")


def test_different_samples_are_refused_by_name(tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", [prediction(n, True) for n in range(3)])
    second = make_run(tmp_path / "second", [prediction(n, True) for n in range(2)])
    with pytest.raises(UserError, match="1 are in one only, such as 's2' of stories") as error:
        load_runs([first, second])
    assert str(first) in str(error.value)
    assert str(second) in str(error.value)


def test_the_only_shared_benchmark_is_the_default(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    for name, benches in {"a": ["mini", "left"], "b": ["mini", "right"]}.items():
        for bench in benches:
            make_run(tmp_path / name, rows, bench=bench)
    runs = [tmp_path / "a", tmp_path / "b"]
    assert compare_runs(load_runs(runs)).bench == "mini"
    with pytest.raises(UserError, match="not scored on 'left'") as error:
        load_runs(runs, "left")
    assert f"d2e eval {tmp_path / 'b'} --bench left" in str(error.value)


def test_several_shared_benchmarks_must_be_chosen_from(tmp_path: Path) -> None:
    for bench in ("mini", "full"):
        make_run(tmp_path / "run", [prediction(1, True)], bench=bench)
    with pytest.raises(UserError, match="full, mini"):
        load_runs([tmp_path / "run"])
    assert load_runs([tmp_path / "run"], "full")[0].scores.bench.name == "full"


def test_runs_without_a_shared_benchmark_are_refused(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, [prediction(1, True)], bench=name) for name in ("one", "two")]
    with pytest.raises(UserError, match="share no benchmark"):
        load_runs(runs)


def test_a_missing_folder_and_a_run_without_scores_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        load_runs([tmp_path / "none"])
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match="no scores") as error:
        load_runs([tmp_path / "new"])
    assert "d2e eval" in str(error.value)


def test_damaged_or_stale_scores_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [prediction(1, True), prediction(2, True)])
    file = run / "eval" / "mini" / "scores.json"
    whole = json.loads(file.read_text())
    for other in ([choice(1, True), choice(2, True)], [prediction(1, True)]):
        file.write_text(json.dumps({**whole, **score_predictions(other).content()}))
        with pytest.raises(UserError, match="is not about"):
            load_runs([run])
    file.write_text(json.dumps({**whole, "model": None}))
    with pytest.raises(UserError, match=r"scores\.json.*model"):
        load_runs([run])


def test_repeated_ids_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [prediction(1, True), prediction(1, False)])
    with pytest.raises(UserError, match="repeat"):
        load_runs([run])


def test_the_reference_is_named_by_label_or_path_and_stands_first(tmp_path: Path) -> None:
    runs = load_runs([make_run(tmp_path / name, [prediction(1, True)]) for name in ("base", "sft", "d2e")])
    for name in ("sft", str(tmp_path / "sft")):
        assert [run.label for run in reference_first(runs, name)] == ["sft", "base", "d2e"]
    with pytest.raises(UserError, match=r"--reference stf: none of the runs.*Did you mean 'sft'"):
        reference_first(runs, "stf")


def test_one_subset_s_samples_are_scored_again(tmp_path: Path) -> None:
    rows = [
        story(1, "conflict", "garage"),
        story(2, "conflict", "kitchen"),
        story(3, "aligned", "x"),
        prediction(4, True),
    ]
    (run,) = only_subset(load_runs([make_run(tmp_path / "run", rows)]), "conflict")
    assert [p.id for p in run.predictions.values()] == ["s1", "s2"]
    assert (run.scores.overall.n, run.scores.overall.exact_match.mean) == (2, 0.5)
    assert run.scores.model == "model of run"


def test_a_subset_of_rows_without_tags_says_what_they_lack(tmp_path: Path) -> None:
    runs = load_runs([make_run(tmp_path / "run", [prediction(1, True)])])
    with pytest.raises(UserError, match="--subset conflict: no sample of mini has a tag") as error:
        only_subset(runs, "conflict")
    assert "`subset`" in str(error.value)

"""Run folders are read together; those that do not fit or are damaged are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs, only_subset, reference_first
from tests.factories import bench_rows, make_run, prediction, save_bench, story


def test_runs_of_one_name_are_told_apart_by_their_path(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    runs = [make_run(tmp_path / name, rows) for name in ("x/seed/run", "y/seed/run", "y/other")]
    assert [run.label for run in load_runs(runs)] == ["x/seed/run", "y/seed/run", "other"]


def one(folder: Path, name: str = "run", count: int = 1, **changes: Any) -> Path:
    return make_run(folder / name, [prediction(n, True) for n in range(count)], **changes)


def rows_of(folder: Path) -> Path:
    save_bench(folder, bench_rows(2))
    return folder


@pytest.mark.parametrize(
    ("make", "bench", "message"),
    [
        (lambda f: [one(f), f / "." / "run"], None, "twice"),
        (lambda f: [one(f, name, sha256=name * 64) for name in "ab"], None, "different benchmarks.*a{64}.*b{64}"),
        (lambda f: [one(f, "a", 3), one(f, "b", 2)], None, "1 are in one only, such as 's2' of stories"),
        (
            lambda f: [one(f, "a", 3), one(f, "b", 2, subset={"per_group": 2, "seed": 0, "of": 3})],
            None,
            "score all rows: add --max-samples 3 --overwrite to the d2e eval of .*b$",
        ),
        (lambda f: [one(f, bench=bench) for bench in ("mini", "full")][:1], None, "full, mini"),
        (lambda f: [one(f)], "left", "not scored on 'left', only on mini(.|\n)*d2e eval .*run --bench left"),
        (lambda f: [one(f, "a", bench="left"), one(f, "b")], "left", "d2e eval .*b --bench data/left/test.parquet$"),
        (lambda f: [one(f)], "piper", "d2e eval .*run --suite piper$"),
        (lambda f: [one(f)], "piper-few_shot-completion", "--suite piper --setting few_shot --form completion$"),
        (lambda f: [one(f)], "wiqa", "d2e eval .*run --bench wiqa$"),
        (lambda f: [rows_of(f / "own")], None, "holds rows, no run(.|\n)*d2e eval RUN --bench .*own, and give RUN"),
        (lambda f: [one(f, name, bench=name) for name in ("one", "two")], None, "share no benchmark"),
        (lambda f: [f / "none"], None, "no such run folder"),
        (lambda f: [f], None, "no scores(.|\n)*d2e eval"),
        (lambda f: [make_run(f / "run", [prediction(1, True), prediction(1, False)])], None, "repeat"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(
    tmp_path: Path, make: Callable[[Path], list[Path]], bench: str | None, message: str
) -> None:
    runs = make(tmp_path)
    with pytest.raises(UserError, match=message):
        load_runs(runs, bench)


def test_the_benchmark_is_the_only_shared_one_or_the_chosen_one(tmp_path: Path) -> None:
    for name, benches in {"a": ["mini", "left"], "b": ["mini", "right"]}.items():
        for bench in benches:
            one(tmp_path, name, bench=bench)
    assert compare_runs(load_runs([tmp_path / "a", tmp_path / "b"])).bench == "mini"
    assert load_runs([tmp_path / "a"], "left")[0].scores.bench.name == "left"


def test_damaged_or_stale_scores_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [prediction(1, True), prediction(2, True)])
    other = make_run(tmp_path / "other", [prediction(1, True)])
    (run / "eval/mini/scores.json").write_bytes((other / "eval/mini/scores.json").read_bytes())
    with pytest.raises(UserError, match=r"predictions\.jsonl: was changed; scores\.json has its SHA-256"):
        load_runs([run])
    with pytest.raises(UserError, match=r"scores\.json.*model"):
        load_runs([one(tmp_path, "third", model=None)])


def test_a_checkpoint_is_named_by_its_run(tmp_path: Path) -> None:
    paths = [tmp_path / "d2e" / "checkpoint-30", tmp_path / "d2e" / "checkpoint-60", tmp_path / "sft"]
    runs = load_runs([make_run(path, [prediction(1, True)]) for path in paths])
    assert [run.label for run in runs] == ["d2e/checkpoint-30", "d2e/checkpoint-60", "sft"]
    assert [run.home.name for run in runs] == ["d2e", "d2e", "sft"], "where recipe and data are recorded"
    assert reference_first(runs, "sft")[0].label == "sft"


def test_the_reference_is_named_by_label_or_path_and_stands_first(tmp_path: Path) -> None:
    runs = load_runs([make_run(tmp_path / name, [prediction(1, True)]) for name in ("base", "sft", "d2e")])
    for name in ("sft", str(tmp_path / "sft")):
        assert [run.label for run in reference_first(runs, name)] == ["sft", "base", "d2e"]
    with pytest.raises(UserError, match=r"--reference stf: none of the runs.*Did you mean 'sft'"):
        reference_first(runs, "stf")


def test_one_subset_s_samples_can_be_compared_alone(tmp_path: Path) -> None:
    rows = [story(1, "conflict", "garage"), story(2, "conflict", "kitchen"), story(3, "aligned", "x")]
    rows.append(prediction(4, True))
    (run,) = only_subset(load_runs([make_run(tmp_path / "run", rows)]), "conflict")
    assert [p.id for p in run.predictions.values()] == ["s1", "s2"]
    assert compare_runs([run]).groups[0].score("run", "exact_match").mean == 0.5
    runs = load_runs([make_run(tmp_path / "untagged", [prediction(1, True)])])
    with pytest.raises(UserError, match="--subset conflict: mini has none; expected rows with the field `subset`"):
        only_subset(runs, "conflict")

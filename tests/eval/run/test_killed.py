"""An evaluation killed by SIGKILL resumes, and its results are those of one that was not killed."""

import json
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.command import Kill, call, d2e, evaluate, finish, launched, refusal_of
from tests.factories import bench_rows, save_bench, scores_of, train_rows, without_the_clock
from tests.tiny import save_tiny_model

SIGKILLED = -9


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a benchmark of 14 rows, and its uninterrupted evaluation by one process."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3)
    save_bench(folder / "bench", bench_rows(14), train_rows())
    for setting in ("zero_shot", "few_shot"):
        assert d2e("eval", *arguments(folder, folder / "whole"), "--setting", setting) == 0
    return folder


def arguments(world: Path, run: Path) -> list[str | Path]:
    return [
        world / "model", "--bench", world / "bench", "--out", run,
        "--max-new-tokens", "6", "--batch-size", "3", "--alpha", "0.5",
    ]  # fmt: skip


def folder_of(run: Path) -> Path:
    return run / "eval" / "bench"


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


@pytest.mark.parametrize(("append", "after", "kept"), [(1, True, 0), (9, False, 7), (15, True, 14)])
def test_a_killed_evaluation_goes_on_and_decodes_nothing_twice(
    world: Path, tmp_path: Path, decoded: list[Any], append: int, after: bool, kept: int
) -> None:
    # Appends: the line of the session, then an answer each.
    kill = Kill("eval.run.journal:Journal._append", append, after=after)
    assert evaluate(tmp_path, arguments(world, tmp_path / "run"), kill).status == SIGKILLED
    partial = folder_of(tmp_path / "run") / "predictions.partial.jsonl"
    assert len(lines_of(partial)) == 1 + kept
    assert not (folder_of(tmp_path / "run") / "predictions.jsonl").exists()
    resumed = call("eval", *arguments(world, tmp_path / "run"))
    assert len(decoded) == 14 - kept
    assert (f"resumed: {kept} of 14 samples were decoded before" in resumed.err) == (kept > 0)
    same_as_whole(world, tmp_path / "run", resumed=kept)
    assert not partial.exists()


def same_as_whole(world: Path, run: Path, *, resumed: int, bench: str = "bench") -> None:
    one, other = (folder / "eval" / bench / "predictions.jsonl" for folder in (world / "whole", run))
    assert other.read_bytes() == one.read_bytes()
    expected = {**without_the_clock(scores_of(world / "whole", bench)), "resumed": resumed}
    assert without_the_clock(scores_of(run, bench)) == expected


@pytest.mark.parametrize(
    "function", ["passes:write_whole", "passes:write_json", "evaluate:read_predictions", "evaluate:write_scores"]
)
def test_a_kill_during_writing_costs_no_answer(world: Path, tmp_path: Path, decoded: list[Any], function: str) -> None:
    kill = Kill(f"eval.run.{function}", after=True)
    assert evaluate(tmp_path, arguments(world, tmp_path / "run"), kill).status == SIGKILLED
    assert d2e("eval", *arguments(world, tmp_path / "run")) == 0
    assert not decoded
    predictions = [folder_of(run) / "predictions.jsonl" for run in (world / "whole", tmp_path / "run")]
    assert predictions[0].read_bytes() == predictions[1].read_bytes()
    assert not list(folder_of(tmp_path / "run").glob("*.partial*"))


def killed(world: Path, folder: Path) -> Path:
    """A run with 6 answers."""
    run = folder / "run"
    kill = Kill("eval.run.journal:Journal._append", 7, after=True)
    assert evaluate(folder, arguments(world, run), kill).status == SIGKILLED
    return run


def test_a_line_that_was_cut_off_is_said_and_decoded_again(world: Path, tmp_path: Path) -> None:
    run = killed(world, tmp_path)
    partial = folder_of(run) / "predictions.partial.jsonl"
    partial.write_bytes(partial.read_bytes()[:-9])
    error = call("eval", *arguments(world, run)).err
    assert f"{partial}: its last line was cut off, so that sample is decoded again" in error
    assert "resumed: 5 of 14" in error
    same_as_whole(world, run, resumed=5)


def test_a_partial_evaluation_of_other_options_is_refused_and_can_be_replaced(world: Path, tmp_path: Path) -> None:
    run = killed(world, tmp_path)
    error = refusal_of("eval", *arguments(world, run), "--alpha", "0.7")
    assert "predictions.partial.jsonl: was decoded by another model or with other options" in error
    assert "--alpha: 0.5 → 0.7" in error
    assert d2e("eval", *arguments(world, run), "--alpha", "0.7", "--overwrite") == 0
    assert scores_of(run)["alpha"] == 0.7
    assert scores_of(run)["resumed"] == 0


def test_overwriting_that_was_killed_goes_on_too(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert d2e("eval", *arguments(world, run), "--alpha", "0.7") == 0
    kill = Kill("eval.run.journal:Journal._append", 7, after=True)
    assert evaluate(tmp_path, [*arguments(world, run), "--overwrite"], kill).status == SIGKILLED
    assert d2e("eval", *arguments(world, run), "--overwrite") == 0
    same_as_whole(world, run, resumed=6)


TWO_PROCESSES = ("--launch", "ddp", "--processes", "2")


def test_two_processes_give_the_files_of_one(world: Path, tmp_path: Path) -> None:
    two = ("--setting", "few_shot", *TWO_PROCESSES)
    ended = finish(launched(tmp_path, "eval", *arguments(world, tmp_path / "run"), *two), timeout=300)
    assert ended.status == 0, ended.printed[-3000:]
    assert ended.printed.count("scores and predictions:") == 1
    same_as_whole(world, tmp_path / "run", resumed=0, bench="bench-few_shot")
    assert scores_of(tmp_path / "run", "bench-few_shot")["environment"]["processes"] == 2, "else one did all the work"


def test_what_two_killed_processes_decoded_is_taken_over_by_one(world: Path, tmp_path: Path) -> None:
    run, rows = tmp_path / "run", 60
    save_bench(tmp_path / "bench", bench_rows(rows))
    common = ("--bench", str(tmp_path / "bench"), "--max-new-tokens", "24", "--batch-size", "1")
    process, printed = launched(tmp_path, "eval", *arguments(world, run), *common, *TWO_PROCESSES)
    parts = [folder_of(run) / name for name in ("predictions.partial.jsonl", "predictions.partial.1.jsonl")]
    while not all(part.is_file() and part.read_bytes().count(b"\n") >= 2 for part in parts):
        assert process.is_alive(), printed.read_text()[-3000:]
        time.sleep(0.01)
    launcher = psutil.Process(process.pid)
    family = [launcher, *launcher.children(recursive=True)]  # the workers have sessions of their own
    for member in family:
        member.kill()
    psutil.wait_procs(family, timeout=30)
    kept = sum(part.read_bytes().count(b"\n") - 1 for part in parts)
    assert 2 <= kept < rows, "the kill came too late to show anything"
    assert d2e("eval", *arguments(world, run), *common) == 0
    assert d2e("eval", *arguments(world, tmp_path / "one"), *common) == 0
    one, other = (folder_of(folder) / "predictions.jsonl" for folder in (tmp_path / "one", run))
    assert other.read_bytes() == one.read_bytes()
    assert scores_of(run)["resumed"] == kept
    assert scores_of(run)["environment"]["processes"] == 1, "of the last session"

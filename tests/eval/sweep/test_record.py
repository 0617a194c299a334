"""A sweep's folder accepts only the same sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.run import refuse_other_sweep, save_record
from tests.eval.fake_sweeps import planned

RUNS = "runs: {a: {train.learning_rate: 1e-5}}"


def test_points_may_be_added_and_what_was_begun_may_not_change(tmp_path: Path) -> None:
    save_record(planned(tmp_path, text=RUNS))
    refuse_other_sweep(planned(tmp_path, text=RUNS))
    refuse_other_sweep(planned(tmp_path, text="runs: {b: {}}"))
    refuse_other_sweep(planned(tmp_path, text="runs: {a: {train.learning_rate: 1e-5, train.save_steps: 5}}"))
    with pytest.raises(UserError, match=r"another sweep\n  a: train\.learning_rate: 1e-05 → 2e-05"):
        refuse_other_sweep(planned(tmp_path, text=RUNS.replace("1e-5", "2e-5")))


def test_what_is_scored_may_change_until_something_is(tmp_path: Path) -> None:
    first = planned(tmp_path, text=RUNS)
    save_record(first)
    others = {
        f"benchmark: '--bench {tmp_path}/mini' → '--bench other'": planned(tmp_path, text=RUNS, bench="other"),
        "--eval-args: '' → '--setting cot'": planned(tmp_path, text=RUNS, eval_args="--setting cot"),
        "evaluation.alpha: None → 0.7": planned(tmp_path, text=f"{RUNS}\nevaluations: {{'': {{alpha: 0.7}}}}"),
    }
    for other in others.values():
        refuse_other_sweep(other)
    (first.out / "a/eval/mini").mkdir(parents=True)
    (first.out / "a/eval/mini/scores.json").touch()
    for said, other in others.items():
        with pytest.raises(UserError) as error:
            refuse_other_sweep(other)
        assert said in str(error.value)
    (tmp_path / "train.jsonl").write_text("{} \n")
    with pytest.raises(UserError, match=r"SHA-256 of .*train\.jsonl"):
        refuse_other_sweep(first)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(UserError, match="is not empty and no sweep"):
        refuse_other_sweep(planned(tmp_path, text=RUNS))

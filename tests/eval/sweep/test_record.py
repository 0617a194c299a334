"""A sweep's folder knows what it was begun with: only the same sweep goes on there, and one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.grid import grid, parse_axes
from eval.sweep.record import DONE_FILE, Sweep, locked, refuse_other_sweep, save_record

RECIPE = """
model: {{name: some/model}}
data: {{train: {data}}}
train: {{output_dir: unused, learning_rate: 1e-5}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "train.jsonl").write_text("{}\n")
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.format(data=tmp_path / "train.jsonl"))
    return str(file)


def sweep(recipe: str, out: Path, *axes: str, bench: str = "bench", eval_arguments: tuple[str, ...] = ()) -> Sweep:
    parsed = parse_axes(axes or ["d2e.alpha=0.1,0.5"])
    return Sweep(recipe, parsed, grid(recipe, parsed, out), out, ("--bench", bench), list(eval_arguments), [])


def test_the_same_sweep_goes_on_and_another_is_refused_by_what_differs(recipe: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    save_record(sweep(recipe, out))
    refuse_other_sweep(sweep(recipe, out))
    refuse_other_sweep(sweep(recipe, out, bench="other", eval_arguments=("--setting", "cot")))  # nothing is scored yet
    (out / "alpha=0.1").mkdir()
    (out / "alpha=0.1" / DONE_FILE).write_text("bench\n")
    with pytest.raises(UserError, match=r"d2e\.alpha: '0\.1,0\.5' → '0\.1,0\.7'"):
        refuse_other_sweep(sweep(recipe, out, "d2e.alpha=0.1,0.7"))
    with pytest.raises(UserError, match=r"train\.seed: 'absent' → '0,1'"):
        refuse_other_sweep(sweep(recipe, out, "d2e.alpha=0.1,0.5", "train.seed=0,1"))
    with pytest.raises(UserError, match="benchmark: '--bench bench' → '--bench other'"):
        refuse_other_sweep(sweep(recipe, out, bench="other"))
    with pytest.raises(UserError, match="--eval-args: '' → '--setting cot'"):
        refuse_other_sweep(sweep(recipe, out, eval_arguments=("--setting", "cot")))
    text = Path(recipe).read_text()
    Path(recipe).write_text(text.replace("1e-5", "2e-5, save_steps: 5"))
    with pytest.raises(UserError, match=r"train\.learning_rate: 1e-05 → 2e-05") as error:
        refuse_other_sweep(sweep(recipe, out))
    assert "save_steps" not in str(error.value), "how often is saved may change"
    Path(recipe).write_text(text)
    (tmp_path / "train.jsonl").write_text("{} \n")
    with pytest.raises(UserError, match=r"SHA-256 of .*train\.jsonl"):
        refuse_other_sweep(sweep(recipe, out))


def test_a_folder_with_something_else_in_it_is_refused(recipe: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not empty and no sweep"):
        refuse_other_sweep(sweep(recipe, tmp_path))


def test_two_sweeps_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="is at work there"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass

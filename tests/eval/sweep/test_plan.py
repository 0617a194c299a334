"""A sweep of named runs: what its plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.plan import plan_points, read_plan

RECIPE = """
model: {name: tiny}
data: {train: train.jsonl}
train: {output_dir: unused}
"""


def written(folder: Path, text: str) -> str:
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "plan.yaml").write_text(f"recipe: {folder}/recipe.yaml\nsuite: piper\n{text}")
    return str(folder / "plan.yaml")


def test_points_are_runs_times_evaluations_and_a_run_s_own_take_the_place_of_the_plan_s(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
evaluations: {"": {}, -plain: {alpha: 0}}
runs:
  d2e: {overrides: {train.seed: 3}}
  sft: {overrides: {d2e.debias: false}, evaluations: {"": {alpha: 0.7}, -cut: {plausibility: 0.1}}}
  base: {train: false, evaluations: {-ada: {decoder: adacad}, -d2e: {decoder: d2e, alpha: 0.2}}}
""",
    )
    plan = read_plan(file)
    assert plan is not None
    axis, points = plan_points(plan, plan.recipe, tmp_path / "out", ["train.seed=1", "train.num_train_epochs=2"])
    found = {point.name: (point.trained_in, point.decoding.alpha, point.decoding.plausibility) for point in points}
    assert found == {
        "d2e": ("d2e", 0.5, 0.0), "d2e-plain": ("d2e", 0.0, 0.0),
        "sft": ("sft", 0.7, 0.0), "sft-plain": ("sft", 0.0, 0.0), "sft-cut": ("sft", 0.0, 0.1),
        "base": ("base", 0.5, 0.0), "base-plain": ("base", 0.0, 0.0),
        "base-ada": ("base", 0.0, 0.0), "base-d2e": ("base", 0.2, 0.0),
    }  # fmt: skip
    assert points[-2].decoding.decoder == "adacad:floor=0"
    assert axis.values == tuple(found)
    assert points[0].overrides == ["train.seed=1", "train.num_train_epochs=2", "train.seed=3"]
    assert points[0].recipe.train.seed == 3
    assert points[2].recipe.train.seed == 1
    assert plan.choose(["sft", "base-plain"]) == {"sft", "sft-plain", "sft-cut", "base-plain"}
    assert plan.choose([]) == set(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: {}", "runs: got {}"),
        ("runs: {a: {overides: {}}}", "runs.a.overides"),
        ("runs: {a: {evaluations: {'': {alpha: -1}}}}", "greater than or equal to 0"),
        ("runs: {a: {evaluations: {'': {decoder: cda}}}}", "Did you mean 'cad'?"),
        ("runs: {a: {evaluations: {'': {decoder: cad, alpha: 1}}}}", "alpha 1 with the decoder cad"),
        ("runs: {a: {}, a-b: {}}\nevaluations: {'': {}, -b: {}}", "'a-b' is that of two points"),
        ("runs: {a/b: {}}", "the name 'a/b'"),
        ("runs: {a: {overrides: {train.output_dir: x}}}", "a folder of its own"),
        ("runs: {sft: {}}\ncomparisons: {main: [sfd]}", "main: no point 'sfd'. Did you mean 'sft'"),
    ],
)
def test_a_plan_that_cannot_be_understood_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match="not the plan of a sweep") as error:
        read_plan(written(tmp_path, text))
    assert said in str(error.value)


def test_a_recipe_or_a_name_is_no_plan(tmp_path: Path) -> None:
    written(tmp_path, "runs: {a: {}}")
    assert read_plan(str(tmp_path / "recipe.yaml")) is None
    assert read_plan("smollm2-135m/d2e") is None

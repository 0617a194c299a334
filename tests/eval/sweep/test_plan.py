"""A sweep of named runs: what its plan says, and the plan of docs/evidence.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.plan import plan_points, read_plan
from tests.command import d2e

EVIDENCE = Path(__file__).parents[3] / "launch" / "evidence.yaml"
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
  base: {train: false}
""",
    )
    plan = read_plan(file)
    assert plan is not None
    axis, points = plan_points(plan, plan.recipe, tmp_path / "out", ["train.seed=1", "train.epochs=2"])
    found = {point.name: (point.trained_in, point.alpha, point.evaluation.plausibility) for point in points}
    assert found == {
        "d2e": ("d2e", 0.5, 0.0), "d2e-plain": ("d2e", 0.0, 0.0),
        "sft": ("sft", 0.7, 0.0), "sft-plain": ("sft", 0.0, 0.0), "sft-cut": ("sft", 0.0, 0.1),
        "base": ("base", 0.5, 0.0), "base-plain": ("base", 0.0, 0.0),
    }  # fmt: skip
    assert axis.values == tuple(found)
    assert points[0].overrides == ["train.seed=1", "train.epochs=2", "train.seed=3"]
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
    assert read_plan("smollm2-135m/full") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sfd"], "'sfd': neither a run of the plan nor an override. Did you mean 'sft'"),
        (["d2e.alpha=1,2"], "holds for all runs of a plan; expected one value"),
    ],
)
def test_a_word_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert d2e("sweep", written(tmp_path, "runs: {sft: {}}"), *words) == 1
    assert said in capsys.readouterr().err


def test_the_plan_of_the_evidence_trains_and_scores_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("data/piper/manifest.json", "data/piper-640/train.parquet"):
        Path(file).parent.mkdir(parents=True)
        Path(file).touch()
    assert d2e("sweep", EVIDENCE, "--dry-run") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "38 points: 16 trainings and 38 evaluations in runs/evidence"
    commands = [line.strip() for line in lines if line.startswith("  ")]
    assert len(commands) == len(set(commands)) == 64
    common = "--suite piper --max-samples 100 --max-new-tokens 48 --batch-size 100 --dtype bfloat16"
    assert f"d2e eval runs/evidence/sft {common} --alpha 0.5 --without-context" in commands
    assert f"d2e eval runs/evidence/d2e {common} --out runs/evidence/d2e-at-0.25 --alpha 0.25" in commands
    assert (
        f"d2e eval runs/evidence/sft {common} --out runs/evidence/sft-cut-0.1 --alpha 0.5 --plausibility 0.1"
        in commands
    )
    assert f"d2e eval runs/evidence/alpha-0.7 {common} --alpha 0.7" in commands
    assert f"d2e eval builtin:smollm2-135m-instruct {common} --out runs/evidence/base-plain --alpha 0.0" in commands
    assert sum(command.startswith("d2e errors") for command in commands) == 5

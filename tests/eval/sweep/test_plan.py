"""The plan of `launch/paper.yaml`, and of the same at a small scale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.cells import steps
from eval.sweep.plan import Sweep, plan_sweep
from eval.sweep.spec import read_spec
from tests.command import output_of, refusal_of

PLAN = str(Path(__file__).parents[3] / "launch/paper.yaml")
QWEN = "qwen1.5-7b"


def plan(*words: str, scale: str | None = None) -> Sweep:
    return plan_sweep(read_spec(PLAN, scale), words, None, "paper")


def test_the_plan_has_every_run_of_the_tables() -> None:
    found = plan()
    trained = {point.name for point in found.trainings}
    models = {QWEN, "llama-2-7b", "deepseek-7b"}
    assert {f"{method},{model}" for method in ("sft", "d2e", "no-distill", "no-debias") for model in models} <= trained
    ratios = {(point.values["model"], point.recipe.d2e.alpha) for point in found.trainings if len(point.name) > 3}
    assert {(model, a) for model in (QWEN, "llama-2-7b") for a in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 2, 5)} <= ratios
    assert [name for name in trained if name.startswith("self")] == [f"self-refined,{QWEN}"]
    assert len(trained) == 12 + 2 * 8 + 1
    for point in found.trainings:  # the paper's section 4.3
        train = point.recipe.train
        assert (train.learning_rate, train.batch_size, train.num_train_epochs, train.fp16) == (1e-5, 64, 3, True)
    assert found.spec.paper_tables["table-4"].points[0] == f"base,{QWEN}"
    assert len(found.spec.paper_tables["table-4"].points) == 9
    assert len(found.spec.paper_tables["table-10"].points) == 6
    assert len(found.spec.paper_tables["table-6"].points) == 16 + 3


def test_commands_are_listed_in_order_and_data_are_built_once() -> None:
    found, listed = plan(f"model={QWEN}"), list[list[str]]()
    for point in found.work:
        listed += [words for _, words in steps(found, point) if words not in listed]
    builds = [" ".join(words) for words in listed if words[0] == "data"]
    assert [re.findall(r"--suite (\S+)", words)[0] for words in builds] == ["piper", "ood", "piper-10k", "piper-10k"]
    assert "--judge local --judge-model Qwen/Qwen1.5-7B-Chat" in builds[-1]
    d2e = next(n for n, words in enumerate(listed) if words[0] == "train" and "runs/paper-tables/d2e," in words[-5])
    train, piper, ood = (" ".join(words) for words in listed[d2e : d2e + 3])
    assert "--launch zero3 --processes 8" in train
    assert "--suite piper --data runs/paper-tables/data --launch ddp" in piper
    assert "--suite ood --data runs/paper-tables/data" in ood
    assert ood.endswith(f"--out runs/paper-tables/d2e,{QWEN}-ood --alpha 0.5")


def test_a_scale_is_the_same_plan_with_another_model(tmp_path: Path) -> None:
    small, whole = plan(scale="smollm2-135m"), plan()
    assert {point.values["run"] for point in small.points} == {point.values["run"] for point in whole.points}
    assert len(small.trainings) == 4 + 8 + 1
    assert {point.recipe.model.name for point in small.points} == {"builtin:smollm2-135m-instruct"}
    assert small.spec.paper_tables.keys() == whole.spec.paper_tables.keys()
    out = tmp_path / "out"
    printed = output_of("sweep", PLAN, "sft", "--scale", "smollm2-135m", "--out", out, "--dry-run")
    assert "left: 1 trainings and 1 evaluations" in printed
    assert "--size 64" in printed
    assert re.search(r"\nin all [\d.]+ M tokens, .* on 1 × CPU core", printed)
    file = tmp_path / "sweep.yaml"
    file.write_text("recipe: smollm2-135m-mini/d2e\nruns: {a: {}}\nscales: {small: [1]}\n")
    assert "scales: got ['1']; expected keys of a sweep" in refusal_of("sweep", file, "--scale", "small", "--dry-run")
    assert "has no scales" in refusal_of("sweep", "smollm2-135m-mini/d2e", "--scale", "small")
    assert "Did you mean 'smollm2-135m'?" in refusal_of("sweep", PLAN, "--scale", "smollm2", "--dry-run")


def test_a_name_with_a_star_stands_for_points_of_one_evaluation(tmp_path: Path) -> None:
    text = (
        "runs: {a: {evaluations: {-x: {alpha: 0}}}, b: {not_with: {train.seed: ['1']}}}\naxes: {train.seed: [0, 1]}\n"
    )
    (tmp_path / "recipe.yaml").write_text("model: {name: m}\ndata: {train: t}\ntrain: {output_dir: o}\n")
    file = tmp_path / "sweep.yaml"

    def tables(points: str) -> list[str]:
        file.write_text(f"recipe: {tmp_path}/recipe.yaml\n{text}comparisons: {{t: [{points}]}}\n")
        return plan_sweep(read_spec(str(file)), [], tmp_path / "out", "x").spec.comparisons["t"]

    assert tables("'*'") == ["a,seed=0", "a,seed=1", "b,seed=0"]
    assert tables("'a,*-x', '*'") == ["a,seed=0-x", "a,seed=1-x", "a,seed=0", "a,seed=1", "b,seed=0"]
    with pytest.raises(UserError, match=r"t: no point 'c,\*'"):
        tables("'c,*'")

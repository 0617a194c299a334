"""The grid of a sweep: values, names, points that are equal, and what is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.grid import Axis, Point, grid, parse_axes

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


def points(recipe: str, *axes: str) -> list[Point]:
    return grid(recipe, parse_axes(axes), Path("out"))


def test_a_comma_in_brackets_or_quotes_belongs_to_a_value() -> None:
    assert parse_axes(["d2e.alpha=0.1, 0.5,1e-1"]) == [Axis("d2e.alpha", ("0.1", "0.5", "1e-1"))]
    (axis,) = parse_axes(["model.lora.target_modules=[q_proj,v_proj],all-linear,'a,b'"])
    assert axis.values == ("[q_proj,v_proj]", "all-linear", "'a,b'")
    assert parse_axes(["model.lora={r: 4, alpha: 8},null"])[0].values == ("{r: 4, alpha: 8}", "null")


def test_points_are_all_combinations_with_their_values_in_name_and_recipe(recipe: str) -> None:
    found = points(recipe, "d2e.alpha=0.1,0.5", "d2e.distill=true,false", "train.num_train_epochs=2")
    assert [point.name for point in found] == [
        "alpha=0.1,distill=true",
        "alpha=0.1,distill=false",
        "alpha=0.5,distill=true",
        "alpha=0.5,distill=false",
    ]
    assert [(p.recipe.d2e.alpha, p.recipe.d2e.distill) for p in found] == [
        (0.1, True), (0.1, False), (0.5, True), (0.5, False)
    ]  # fmt: skip
    assert {point.recipe.train.num_train_epochs for point in found} == {2.0}
    assert found[0].recipe.train.output_dir == "out/alpha=0.1,distill=true"
    assert found[0].overrides == ["d2e.alpha=0.1", "d2e.distill=true", "train.num_train_epochs=2"]


def test_names_are_folder_names_and_differ(recipe: str) -> None:
    found = points(recipe, "model.name=a/b,a:b,../c", "train.seed=0,1")
    assert len({point.name for point in found}) == 6
    assert all("/" not in point.name and ":" not in point.name for point in found)
    both = points(recipe, "model.lora.lora_alpha=8,16", "d2e.alpha=0.1,0.2")
    assert both[0].name == "model.lora.lora_alpha=8,d2e.alpha=0.1"


def test_what_has_no_effect_makes_no_second_training(recipe: str) -> None:
    found = points(recipe, "d2e.alpha=0,0.5,1.0", "d2e.debias=true,false")
    assert [point.scored_in for point in found] == [
        "alpha=0,debias=true",
        "alpha=0,debias=true",  # without debiasing α is 0, whatever it says
        "alpha=0.5,debias=true",
        "alpha=0,debias=true",
        "alpha=1.0,debias=true",
        "alpha=0,debias=true",
    ]
    assert len({p.trained_in for p in points(recipe, "d2e.kl_weight=0.5,1", "d2e.distill=true,false")}) == 3
    # α decides how the first is decoded, and nothing of the second; the third subtracts it in training.
    found = points(recipe, "d2e.objective=honest,product,weighted", "d2e.alpha=0.5,1.0", "d2e.alpha_weight=jsd")
    assert [len({p.trained_in for p in found[i : i + 2]}) for i in (0, 2, 4)] == [1, 1, 2]
    assert [len({p.scored_in for p in found[i : i + 2]}) for i in (0, 2, 4)] == [2, 1, 2]
    own = points(recipe, "d2e.objective=sft,d2e", "d2e.kl_weight=0", "d2e.alpha=0", "d2e.product_weight=1,2")
    assert len({p.trained_in for p in own}) == 1
    plain = ("d2e.debias=false", "d2e.distill=false")
    assert len({p.trained_in for p in points(recipe, "d2e.view_gradients=all,original", *plain)}) == 1
    assert len({p.trained_in for p in points(recipe, "d2e.view_gradients=all,original")}) == 2


def test_decoding_with_other_alphas_scores_one_model_several_times(recipe: str) -> None:
    found = points(recipe, "eval.alpha=0,0.5,null,1", "d2e.alpha=0.5")
    assert {point.trained_in for point in found} == {found[0].name}
    assert [point.scored_in for point in found] == [found[0].name, found[1].name, found[1].name, found[3].name]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (["d2e.aplha=0.1,0.2"], "unknown key 'd2e.aplha'[^\n]*Did you mean 'alpha'"),
        (["d2e.alpha=0.1,high"], "d2e.alpha: got 'high'"),
        (["d2e.alpha=0.1,-1"], "d2e.alpha: got -1"),
        (["d2e.alpha=0.1,,1"], "an empty value"),
        (["d2e.alpha="], "an empty value"),
        (["d2e.alpha=0.1,"], "an empty value"),
        (["d2e.alpha"], "expected section.key=value"),
        (["=1"], "expected section.key=value"),
        (["d2e.alpha=1", "d2e.alpha=2"], "given twice"),
        (["train.output_dir=a,b"], "a folder of its own"),
        (["model.lora.target_modules=[a,b"], r"\] is missing"),
        (["model.name='a,b"], "' is missing"),
        (["eval.max_samples=10,20"], "changes how a model is scored"),
        (["train.batch_size=8,9"], "train.batch_size=9 is not a multiple"),
        ([], "without an axis"),
    ],
)
def test_a_bad_axis_is_refused_before_anything_is_trained(recipe: str, axes: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        points(recipe, *axes)

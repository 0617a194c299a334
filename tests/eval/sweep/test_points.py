"""The file and the points of a sweep: values, names, equal points, and what is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.plan import Point, data_folder, split_values
from eval.sweep.spec import read_spec
from tests.eval.fake_sweeps import planned, write_sweep

PROBED = """
build: --datasets habit habit.strength={strength} --seed {seed}
overrides: {train.seed: "{seed}", train.max_steps: 7}
axes:
  seed: [3, 4]
  strength: [0.5, 0.95]
  data: {as-is: {}, swapped: {build: --swap 0.5}}
  way: {sft: {d2e.debias: false, d2e.distill: false}, d2e: {}}
probe: {reference: {way: sft, data: as-is}}
"""
NAMED = """
evaluations: {"": {}, -plain: {alpha: 0}}
runs:
  d2e: {train.seed: 3}
  sft: {d2e.debias: false, evaluations: {"": {alpha: 0.7}, -cut: {plausibility: 0.1}}}
  base: {train: false, evaluations: {-ada: {decoder: adacad}, -d2e: {decoder: d2e, alpha: 0.2}}}
"""


def test_a_comma_in_brackets_or_quotes_belongs_to_a_value() -> None:
    assert split_values("", "0.1, 0.5,1e-1") == ["0.1", "0.5", "1e-1"]
    assert split_values("", "[q_proj,v_proj],all-linear,'a,b'") == ["[q_proj,v_proj]", "all-linear", "'a,b'"]
    assert split_values("", "{r: 4, alpha: 8},null") == ["{r: 4, alpha: 8}", "null"]


def test_keys_with_several_values_span_a_grid_and_one_value_holds_for_all(tmp_path: Path) -> None:
    found = planned(tmp_path, "d2e.alpha=0.1,0.5", "d2e.distill=true,false", "train.seed=2").points
    assert {point.name: (point.recipe.d2e.alpha, point.recipe.d2e.distill) for point in found} == {
        "alpha=0.1,distill=true": (0.1, True),
        "alpha=0.1,distill=false": (0.1, False),
        "alpha=0.5,distill=true": (0.5, True),
        "alpha=0.5,distill=false": (0.5, False),
    }
    assert {point.recipe.train.seed for point in found} == {2}
    assert found[0].recipe.train.output_dir == str(tmp_path / "out" / "alpha=0.1,distill=true")
    assert found[0].overrides == ["train.seed=2", "d2e.alpha=0.1", "d2e.distill=true"]


def test_names_are_folder_names_and_differ(tmp_path: Path) -> None:
    found = planned(tmp_path, "model.name=a/b,../c", "train.seed=0,1").points
    assert len({point.name for point in found}) == 4
    assert all("/" not in point.name for point in found)
    both = planned(tmp_path, "eval.alpha=0,1", "d2e.alpha=0.1,0.2").points
    assert both[0].name == "eval.alpha=0,d2e.alpha=0.1"


def trainings(points: list[Point]) -> int:
    return len({point.trained_in for point in points})


def test_values_without_effect_make_no_second_training(tmp_path: Path) -> None:
    found = planned(tmp_path, "d2e.alpha=0,0.5,1.0", "d2e.debias=true,false").points
    first = "alpha=0,debias=true"  # without debiasing α is 0
    assert [point.scored_in for point in found] == [
        first, first, "alpha=0.5,debias=true", first, "alpha=1.0,debias=true", first
    ]  # fmt: skip
    assert trainings(planned(tmp_path, "d2e.kl_weight=0.5,1", "d2e.distill=true,false").points) == 3
    own = ("d2e.objective=sft,d2e", "d2e.kl_weight=0", "d2e.alpha=0", "d2e.prefer_beta=1,2")
    assert trainings(planned(tmp_path, *own).points) == 1
    plain = ("d2e.debias=false", "d2e.distill=false")
    assert trainings(planned(tmp_path, "d2e.view_gradients=all,original", *plain).points) == 1
    assert trainings(planned(tmp_path, "d2e.view_gradients=all,original").points) == 2


def test_other_ratios_of_decoding_score_one_model_several_times(tmp_path: Path) -> None:
    found = planned(tmp_path, "eval.alpha=0,0.5,null,1", "d2e.alpha=0.5").points
    assert {point.trained_in for point in found} == {found[0].name}
    assert [point.scored_in for point in found] == [found[0].name, found[1].name, found[1].name, found[3].name]


def test_named_runs_are_scored_by_the_sweep_s_evaluations_and_their_own(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "train.seed=1", "train.max_steps=2", text=NAMED)
    assert {p.name: (p.trained_in, p.decoding.alpha, p.decoding.plausibility) for p in sweep.points} == {
        "d2e": ("d2e", 0.5, 0.0), "d2e-plain": ("d2e", 0.0, 0.0),
        "sft": ("sft", 0.7, 0.0), "sft-plain": ("sft", 0.0, 0.0), "sft-cut": ("sft", 0.0, 0.1),
        "base": ("base", 0.5, 0.0), "base-plain": ("base", 0.0, 0.0),
        "base-ada": ("base", 0.0, 0.0), "base-d2e": ("base", 0.2, 0.0),
    }  # fmt: skip
    assert sweep.points[-2].decoding.decoder == "adacad:floor=0"
    assert sweep.points[0].overrides == ["train.seed=3", "train.max_steps=2"]
    assert [point.recipe.train.seed for point in sweep.points[:3]] == [3, 3, 1]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["sft", "base-plain"], {"sft", "sft-plain", "sft-cut", "base-plain"}),
        (["run=d2e"], {"d2e", "d2e-plain"}),
    ],
)
def test_words_choose_runs_or_points(tmp_path: Path, words: list[str], chosen: set[str]) -> None:
    assert planned(tmp_path, *words, text=NAMED).chosen == chosen


def test_a_combination_has_a_value_of_each_axis_and_its_own_data(tmp_path: Path) -> None:
    points = {point.name: point for point in planned(tmp_path, text=PROBED).points}
    assert len(points) == 2 * 2 * 2 * 2
    one = points["4,0.95,swapped,d2e"]
    assert one.build == ("--datasets", "habit", "habit.strength=0.95", "--seed", "4", "--swap", "0.5")
    assert (one.recipe.train.seed, one.recipe.train.max_steps, one.recipe.d2e.debias) == (4, 7, True)
    data = data_folder(tmp_path / "out", one.build)
    assert one.recipe.data.train == str(data / "train.parquet")
    assert one.recipe.data.probe == str(data / "test.parquet")
    assert len({point.build for point in points.values()}) == 8


def test_words_choose_values_of_axes(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "way=d2e,sft", "seed=4", "data=as-is", "d2e.alpha=0.3", text=PROBED)
    assert sweep.chosen == {"4,0.5,as-is,sft", "4,0.5,as-is,d2e", "4,0.95,as-is,sft", "4,0.95,as-is,d2e"}
    assert {point.recipe.d2e.alpha for point in sweep.points} == {0.3}


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("", ["d2e.aplha=0.1,0.2"], "unknown key 'd2e.aplha'[^\n]*Did you mean 'alpha'"),
        ("", ["d2e.alpha=0.1,high"], "d2e.alpha: got 'high'"),
        ("", ["d2e.alpha=0.1,,1"], "separated by single commas"),
        ("", ["d2e.alpha="], "separated by single commas"),
        ("", ["d2e.alpha=0.1,"], "separated by single commas"),
        ("", ["d2e.alpha=1", "d2e.alpha=2"], "given twice"),
        ("", ["train.output_dir=a,b"], "has its own folder"),
        ("", ["model.lora.target_modules=[a,b"], "separated by single commas"),
        ("", ["model.name='a,b"], "separated by single commas"),
        ("", ["model.name=a/b,a:b"], "'name=a-b': is that of two points"),
        ("", ["eval.max_samples=10,20"], "changes how a model is scored"),
        ("", ["train.per_device_train_batch_size=8,9"], "multiple of train.per_device_train_batch_size=9"),
        ("", [], "without an axis"),
        (NAMED, ["sfd"], "'sfd': neither a run of the sweep nor an override. Did you mean 'sft'"),
        (PROBED, ["wey=sft"], "axis 'wey': unknown; expected one of seed, strength, data, way. Did you mean 'way'"),
        (PROBED, ["way=sfd"], "way=sfd: expected one of sft, d2e. Did you mean 'sft'"),
        ("runs: {a: {}, a-b: {}}\nevaluations: {'': {}, -b: {}}", [], "'a-b': is that of two points"),
        ("runs: {a/b: {}}", [], "the name 'a/b': cannot be a folder"),
        ("runs: {sft: {}}\ncomparisons: {main: [sfd]}", [], "main: no point 'sfd'. Did you mean 'sft'"),
    ],
)
def test_a_call_that_fits_nothing_is_refused(tmp_path: Path, text: str, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned(tmp_path, *words, text=text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: {a: {overides: {}}}", "overides: expected section.key"),
        ("runs: {a: {train.output_dir: x}}", "every training of a sweep has its own folder"),
        ("runs: {a: {evaluations: {'': {alpha: -1}}}}", "greater than or equal to 0"),
        ("runs: {a: {evaluations: {'': {decoder: cda}}}}", "Did you mean 'cad'?"),
        ("runs: {a: {evaluations: {'': {decoder: cad, alpha: 1}}}}", "alpha 1 with the decoder cad"),
        ("axes: {number: [3, 4]}\nprobe: {reference: {number: 3}}", "needs one named seed"),
        ("axes: {seed: [3, 4], way: [sft]}\nprobe: {reference: {way: sfd}}", "way=sfd: expected one of sft"),
        ("axes: {seed: [3, 4]}\nprobe: {reference: {}}", "reference: got {}"),
        ("axes: {seed: [3, 4]}\nrows: x.json", "rows"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match="not a valid sweep") as error:
        read_spec(write_sweep(tmp_path, text))
    assert said in str(error.value)


def test_a_recipe_or_its_name_is_a_sweep_without_axes(tmp_path: Path) -> None:
    recipe = write_sweep(tmp_path)
    for name in (recipe, "smollm2-135m/d2e"):
        spec = read_spec(name)
        assert (spec.recipe, spec.axes) == (name, {})

"""What the file of a study says, and the combinations that follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.study.study import Study, combinations, read_study

RECIPE = "model: {name: tiny}\ndata: {train: train.jsonl}\ntrain: {output_dir: unused}\n"
STUDY = """
out: out
rows: rows.json
build: --datasets habit habit.strength={strength} --seed {seed}
overrides: {train.seed: "{seed}", train.max_steps: 7}
axes:
  seed: [3, 4]
  strength: [0.5, 0.95]
  data: {as-is: {}, swapped: {build: --swap 0.5}}
  way: {sft: {d2e.debias: false, d2e.distill: false}, d2e: {}}
reference: {way: sft, data: as-is}
"""


def written(folder: Path, text: str = STUDY) -> str:
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "study.yaml").write_text(f"recipe: {folder}/recipe.yaml\n{text}")
    return str(folder / "study.yaml")


def study_in(folder: Path) -> Study:
    study = read_study(written(folder))
    assert study is not None
    return study


def test_a_combination_has_a_value_of_each_axis_its_own_recipe_and_the_data_it_needs(tmp_path: Path) -> None:
    found = combinations(study_in(tmp_path), tmp_path / "out")
    assert len(found) == 2 * 2 * 2 * 2
    assert found[0].name == "3,0.5,as-is,sft"
    one = next(combination for combination in found if combination.name == "4,0.95,swapped,d2e")
    assert one.build == ["--datasets", "habit", "habit.strength=0.95", "--seed", "4", "--swap", "0.5"]
    assert one.recipe.train.seed == 4
    assert one.recipe.train.max_steps == 7
    assert one.recipe.d2e.debias
    assert one.recipe.data.train == str(one.data / "train.parquet")
    assert one.recipe.data.probe == str(one.data / "test.parquet")
    assert one.recipe.train.output_dir == str(tmp_path / "out" / "runs" / "4,0.95,swapped,d2e")
    assert not found[0].recipe.d2e.debias


def test_combinations_of_the_same_data_share_its_folder(tmp_path: Path) -> None:
    found = combinations(study_in(tmp_path), tmp_path)
    assert len({combination.data for combination in found}) == 8
    assert len({combination.run for combination in found}) == 16


def test_words_choose_values_and_override_the_recipe(tmp_path: Path) -> None:
    found = combinations(study_in(tmp_path), tmp_path, ["way=d2e,sft", "seed=4", "data=as-is", "d2e.alpha=0.3"])
    assert [one.name for one in found] == [
        "4,0.5,as-is,d2e", "4,0.5,as-is,sft", "4,0.95,as-is,d2e", "4,0.95,as-is,sft"
    ]  # fmt: skip
    assert {one.recipe.d2e.alpha for one in found} == {0.3}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wey=sft", "axis 'wey': not of this study; expected one of seed, strength, data, way. Did you mean 'way'"),
        ("way=sfd", "way=sfd: expected one of sft, d2e. Did you mean 'sft'"),
        ("sft", "'sft': expected AXIS=VALUE"),
        ("d2e.alfa=1", "unknown key 'd2e.alfa'"),
    ],
)
def test_a_word_that_fits_nothing_is_refused(tmp_path: Path, word: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        combinations(study_in(tmp_path), tmp_path, [word])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("seed: [3, 4]", "number: [3, 4]", "expected one named seed"),
        ("reference: {way: sft", "reference: {way: sfd", "way=sfd: expected one of sft, d2e"),
        ("reference: {way: sft, data: as-is}", "reference: {}", "reference: names no axis"),
        ("as-is: {}", "as/is: {}", "the name 'as/is'"),
        ("rows: rows.json", "", "rows: missing"),
        ("rows: rows.json", "rows: rows.json\nbench: x", "bench"),
    ],
)
def test_a_study_that_cannot_be_understood_is_refused(tmp_path: Path, before: str, after: str, said: str) -> None:
    with pytest.raises(UserError, match="not a study") as error:
        read_study(written(tmp_path, STUDY.replace(before, after)))
    assert said in str(error.value)


def test_a_recipe_or_a_name_is_no_study(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_study(str(tmp_path / "recipe.yaml")) is None
    assert read_study("smollm2-135m/d2e") is None

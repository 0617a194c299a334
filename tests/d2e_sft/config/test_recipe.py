"""Recipes: their files and what they extend, overrides, and what the objective decides."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from d2e_sft.config.lookup import (
    bundled_methods,
    bundled_models,
    bundled_recipes,
    compose,
    find_recipe,
    require_recipe,
)
from d2e_sft.config.objectives import OBJECTIVES
from d2e_sft.config.recipe import D2ESection, flat, load_recipe, recipe_of
from d2e_sft.train.checks import check_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import bundled


@pytest.fixture
def recipe_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """`recipe.yaml`; a test's `more` is added to it."""
    path = tmp_path / "recipe.yaml"
    more = request.getfixturevalue("more") if "more" in request.fixturenames else ""
    path.write_text(f"data: {{train: rows.parquet}}\ntrain: {{output_dir: runs/x}}\n{more}\n", encoding="utf-8")
    return path


def test_defaults_are_the_papers(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert (recipe.d2e.alpha, recipe.d2e.kl_weight, recipe.d2e.kl_direction) == (0.5, 1.0, "original_refined")
    assert (recipe.train.learning_rate, recipe.train.batch_size, recipe.train.num_train_epochs) == (1e-5, 64, 3)
    assert recipe.train.warmup_steps == 0.1


def test_overrides_reach_every_section(recipe_file: Path) -> None:
    changes = ["d2e.alpha=0.7", "train.learning_rate=3e-5", "model.lora.r=4", "train.report_to=[wandb]"]
    recipe = load_recipe(recipe_file, [*changes, "train.output_dir=~/x"])
    assert recipe.d2e.alpha == 0.7
    assert (recipe.train.learning_rate, recipe.train.report_to) == (3e-5, ["wandb"])
    assert load_recipe(recipe_file, ["train.report_to=none"]).train.report_to == []
    both = load_recipe(recipe_file, ["train.report_to=tensorboard,wandb"])
    assert both.train.report_to == ["tensorboard", "wandb"]
    assert recipe.train.output_dir == str(Path.home() / "x")
    assert recipe.model.lora is not None
    assert recipe.model.lora.r == 4


@pytest.mark.parametrize(
    ("overrides", "micro_batch"),
    [
        (["train.batch_size=4"], 4),
        (["train.batch_size=30"], 6),
        (["train.batch_size=13"], 1),
        (["train.batch_size=24"], 8),
        (["train.batch_size=4", "train.per_device_train_batch_size=2"], 2),
        (["train.batch_size=4", "train.micro_batch_tokens=64"], 8),
    ],
)
def test_micro_batches_divide_their_batch(recipe_file: Path, overrides: list[str], micro_batch: int) -> None:
    assert load_recipe(recipe_file, overrides).train.per_device_train_batch_size == micro_batch


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", 0.5), ("d2e: {alpha: 0.3}", 0.3), ("d2e: {debias: false}", 0.0), ("eval: {alpha: 0.9}", 0.9)],
)
def test_a_model_is_decoded_as_trained_unless_told_otherwise(recipe_file: Path, more: str, expected: float) -> None:
    assert load_recipe(recipe_file).decoding.alpha == expected


@pytest.mark.parametrize("more", ["d2e: {alpha: 0.7}"])
def test_a_checkpoint_has_its_runs_recipe_and_another_folder_has_none(recipe_file: Path, more: str) -> None:
    run = recipe_file.parent
    (run / "checkpoint-7" / "merged").mkdir(parents=True)
    for folder in (run, run / "checkpoint-7"):
        found = recipe_of(str(folder))
        assert found is not None
        assert found.d2e.alpha == 0.7
    assert recipe_of(str(run / "checkpoint-7" / "merged")) is None
    assert recipe_of("someone/a-model") is None


def test_a_key_in_a_recipe_is_refused_and_not_shown(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    with pytest.raises(UserError, match=r"a value contains that of \$HF_TOKEN") as refused:
        load_recipe(recipe_file, ["train.output_dir=runs/hf_0123456789abcdef"])
    assert "0123456789" not in str(refused.value)


def test_a_bundled_recipe_is_a_models_file_with_a_methods_laid_over_it() -> None:
    source = compose("qwen3-0.6b", "d2e-lora")
    root = bundled("recipes")
    assert source.files == (root / "models" / "qwen3-0.6b.yaml", root / "methods" / "d2e-lora.yaml")
    assert source.name == "qwen3-0.6b/d2e-lora"
    recipe = load_recipe(source)
    assert recipe.train.output_dir == "runs/qwen3-0.6b/d2e-lora"
    assert recipe.train.learning_rate == 1e-4, "the method's, over the model's"
    assert recipe.train.batch_size == 64, "the model's"
    assert recipe.model.lora is not None
    assert load_recipe(source, ["train.learning_rate=3e-4"]).train.learning_rate == 3e-4, "an override, over both"


def test_every_model_goes_with_every_method_that_training_accepts() -> None:
    """An adapter on random weights is refused, so it is not listed; typed all the same, it says why."""
    every = {f"{model}/{method}" for model in bundled_models() for method in bundled_methods()}
    assert every - set(bundled_recipes()) == {
        f"t5-base-boxes-random/{method}" for method in ("sft-lora", "sft-qlora", "d2e-lora", "d2e-qlora")
    }
    with pytest.raises(UserError, match=r"weights=random with model\.lora"):
        check_recipe(load_recipe("t5-base-boxes-random/sft-lora"), processes=1)
    for name in bundled_recipes():
        source = find_recipe(name)
        assert source is not None
        assert source.name == name


def test_a_file_here_wins_over_a_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "methods" / "d2e-lora.yaml"
    assert require_recipe("methods/d2e-lora.yaml").files == (bundled("recipes") / "methods" / "d2e-lora.yaml",)
    file.parent.mkdir()
    file.touch()
    assert require_recipe("methods/d2e-lora.yaml").files == (Path("methods/d2e-lora.yaml"),)


BASE = """
data: {train: rows.parquet, max_length: 300}
model: {lora: {r: 4, target_modules: [q_proj]}}
train: {output_dir: runs/base, num_train_epochs: 2, learning_rate: 3.0e-5}
"""


def write(folder: Path, **files: str) -> Path:
    """The files NAME.yaml; the last one's path."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{name}.yaml"


# The files after BASE, the last of which is read, and values of the recipe.
EXTENDED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "its own values come before those it extends": (
        {"own": "extends: base.yaml\ntrain: {num_train_epochs: 5}\nmodel: {lora: {r: 8}}\n"},
        {"train.num_train_epochs": 5, "train.learning_rate": 3e-5, "data.max_length": 300, "model.lora.r": 8,
         "model.lora.target_modules": ["q_proj"]},
    ),
    "a list replaces a list": (
        {"own": "extends: base.yaml\nmodel: {lora: {target_modules: [k_proj]}}\n"},
        {"model.lora.target_modules": ["k_proj"]},
    ),
    "the later of several bases wins, and a base may extend another": (
        {
            "first": "extends: base.yaml\nd2e: {alpha: 0.1}\ntrain: {num_train_epochs: 7}\n",
            "second": "d2e: {alpha: 0.9}\n",
            "own": "extends: [first.yaml, second.yaml]\n",
        },
        {"d2e.alpha": 0.9, "train.num_train_epochs": 7},
    ),
    "null removes a value": ({"own": "extends: base.yaml\nmodel: {lora: null}\n"}, {"model.lora": None}),
    "an empty section is ignored": ({"own": "extends: base.yaml\nmodel:\n"}, {"model.lora.r": 4}),
    "a base may be a bundled recipe": (
        {"own": "extends: [qwen3-0.6b/d2e-lora, recipes/methods/no-distill.yaml]\ntrain: {num_train_epochs: 7}\n"},
        {"train.output_dir": "runs/qwen3-0.6b/d2e-lora", "train.num_train_epochs": 7, "d2e.distill": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "values"), EXTENDED.values(), ids=EXTENDED)
def test_what_a_recipe_extends(tmp_path: Path, files: dict[str, str], values: dict[str, Any]) -> None:
    found = dict(flat(load_recipe(write(tmp_path, base=BASE, **files)).model_dump()))
    assert {key: found[key] for key in values} == values


def test_a_base_is_looked_for_beside_the_file_and_then_among_the_bundled(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, base=BASE)
    own = write(tmp_path / "deep", own="extends: [../base.yaml, recipes/methods/sft.yaml]\n")
    assert load_recipe(own).d2e.views == ("original",)


def test_a_bundled_recipe_extends_bundled_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = load_recipe("qwen3-0.6b/d2e-qlora")
    (tmp_path / "recipes" / "methods").mkdir(parents=True)
    write(tmp_path / "recipes" / "methods", lora="model: {lora: {r: 1}}\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("qwen3-0.6b/d2e-qlora") == bundled


def test_the_saved_recipe_stands_alone_and_overrides_leave_the_file_as_it_is(tmp_path: Path) -> None:
    own = write(tmp_path, base=BASE, own="extends: base.yaml\ntrain: {num_train_epochs: 5}\n")
    assert load_recipe(own, ["train.num_train_epochs=9", "model.lora=null"]).model.lora is None
    recipe = load_recipe(own)
    assert recipe.model.lora is not None
    recipe.save(tmp_path / "run")
    (tmp_path / "base.yaml").unlink()
    saved = tmp_path / "run" / "recipe.yaml"
    assert load_recipe(saved) == recipe
    assert "extends" not in yaml.safe_load(saved.read_text("utf-8"))


@pytest.mark.parametrize(
    ("options", "views", "alpha"),
    [
        ({"objective": "sft"}, "o", 0),
        ({"objective": "d2e"}, "oir", 0.5),
        ({"debias": False}, "or", 0),
        ({"distill": False}, "oi", 0.5),
        ({"debias": False, "distill": False}, "o", 0),
        ({"alpha": 0, "kl_weight": 0}, "o", 0),
        ({"objective": "teacher"}, "or", 0),
        ({"objective": "teacher", "kl_weight": 0}, "or", 0),
        ({"objective": "teacher", "debias": True, "alpha": 0.2}, "oir", 0.2),
        ({"objective": "prefer"}, "o", 0),
        ({"objective": "mine.losses:best"}, "oi", 0),
        ({"objective": "mine:best", "own_views": ["original", "refined"], "debias": True}, "or", 0.5),
    ],
)
def test_views_and_the_ratio_of_training_and_decoding(options: dict[str, Any], views: str, alpha: float) -> None:
    d2e = D2ESection(**options)
    assert "".join(view[0] for view in d2e.views) == views
    assert d2e.effective_alpha == alpha


OTHER_VALUES: dict[str, Any] = {
    "alpha": 0.7, "debias": False, "distill": False, "kl_weight": 0.3, "kl_direction": "refined_original",
    "view_gradients": "original", "own_views": ["original", "refined"], "prefer_form": "orpo", "prefer_beta": 0.3,
    "prefer_gamma": 0.3, "prefer_reference": "other", "sft_weight": 0.3,
}  # fmt: skip


@pytest.mark.parametrize("option", sorted(set(D2ESection.model_fields) - {"objective"}))
def test_each_option_decides_the_training_of_some_objective(option: str) -> None:
    """Otherwise a sweep over it would train once; an objective's own option belongs into its `options`."""
    changed = []
    for name in [*OBJECTIVES, "mine:best"]:
        try:
            other = D2ESection(objective=name, **{option: OTHER_VALUES[option]})
        except ValidationError:
            continue
        changed.append(other.of_training() != D2ESection(objective=name).of_training())
    assert any(changed)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("more", ["d2e: {alpha: 0.3}"])
def test_a_saved_recipe_repeats_the_run_or_takes_new_defaults(recipe_file: Path, more: str, objective: str) -> None:
    recipe, saved = load_recipe(recipe_file, [f"d2e.objective={objective}"]), recipe_file.parent / "run"
    recipe.save(saved)
    assert load_recipe(saved / "recipe.yaml") == recipe
    assert "kl_direction" in (saved / "recipe.yaml").read_text(), "defaults are written too"
    if objective in ("d2e", "teacher"):
        for other in OBJECTIVES:
            changed = load_recipe(saved / "recipe.yaml", [f"d2e.objective={other}"])
            assert changed.d2e == D2ESection(objective=other, alpha=0.3), other


@pytest.mark.parametrize("more", ["d2e: {distill: false, view_gradients: original}"])
def test_keys_against_an_objectives_defaults_hold_for_another_objective(recipe_file: Path, more: str) -> None:
    d2e = load_recipe(recipe_file, ["d2e.objective=mine:loss"]).d2e
    assert (d2e.debias, d2e.distill, d2e.view_gradients) == (False, False, "original")


@pytest.mark.parametrize(
    "more", ["d2e: {bias_model: null, product_weight: 1.0, imagined_weight: 1.0, alpha_weight: agreement}"]
)
def test_keys_that_an_older_run_spells_out_at_their_defaults_are_ignored(recipe_file: Path, more: str) -> None:
    assert load_recipe(recipe_file).d2e == D2ESection()

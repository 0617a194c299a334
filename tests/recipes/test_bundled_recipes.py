"""Every bundled recipe: its values, and that `--dry-run` works on a tiny stand-in of its architecture."""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from d2e_sft.config.lookup import bundled_models, bundled_recipes
from d2e_sft.config.recipe import DataSection, EvalSection, Recipe, TrainSection, flat, load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.train.checks import accumulation_steps
from d2e_sft.train.dry_run.report import dry_run
from d2e_sft.train.prepare import precision_for
from d2e_sft.util.errors import UserError
from tests.tiny import make_samples, save_tiny_model

bundled = cache(load_recipe)
# The architecture that each model has on the Hub.
ARCHITECTURES = {
    "builtin:smollm2-135m-instruct": "llama",
    "google-t5/t5-base": "t5",
    "Qwen/Qwen1.5-7B-Chat": "qwen2",
    "meta-llama/Llama-2-7b-chat-hf": "llama",
    "deepseek-ai/deepseek-llm-7b-chat": "llama",
    "HuggingFaceTB/SmolLM2-360M-Instruct": "llama",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "llama",
    "Qwen/Qwen3-0.6B": "qwen3",
    "Qwen/Qwen3-1.7B": "qwen3",
    "Qwen/Qwen3-4B": "qwen3",
    "google/gemma-3-270m-it": "gemma3",
    "google/gemma-3-1b-it": "gemma3",
    "Qwen/Qwen3.5-0.8B": "qwen3.5",
    "Qwen/Qwen3.5-2B": "qwen3.5",
    "google/gemma-4-E2B-it": "gemma4",
    "LiquidAI/LFM2.5-350M": "lfm2",
    "LiquidAI/LFM2.5-1.2B-Instruct": "lfm2",
    "ibm-granite/granite-4.0-350m": "granite4",
    "meta-llama/Llama-3.2-1B-Instruct": "llama",
    "meta-llama/Llama-3.2-3B-Instruct": "llama",
}
PAPER = ("qwen1.5-7b-chat", "llama-2-7b-chat", "deepseek-7b-chat")
# The others with recipes on the 10K instruction set; the rest serve one purpose each, on data of their own.
SMALL = ("smollm2-135m", "smollm2-360m", "smollm2-1.7b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "gemma-3-270m",
         "gemma-3-1b", "gemma-4-e2b", "granite-4-350m", "lfm2.5-1.2b", "lfm2.5-350m", "llama-3.2-1b", "llama-3.2-3b",
         "qwen3.5-0.8b", "qwen3.5-2b")  # fmt: skip
LAYOUTS = {"t5": "encoder_decoder", "qwen3.5": "batched", "lfm2": "batched"}
MODELS = [*PAPER, *SMALL]
# What a method may change of its model's training by `d2e`, besides the run folder.
METHODS = {
    "d2e-lora": {"model.lora", "train.learning_rate"},
    "d2e-qlora": {"model.lora", "model.quantization", "train.learning_rate"},
    "sft": {"d2e.objective", "d2e.debias", "d2e.distill"},
    "sft-lora": {"d2e.objective", "d2e.debias", "d2e.distill", "model.lora", "train.learning_rate"},
    "no-distill": {"d2e.distill"},
    "no-debias": {"d2e.debias"},
    "question-only": {"d2e.objective", "d2e.debias", "d2e.distill", "data.without_context"},
    "teacher": {"d2e.objective", "d2e.debias"},
    "prefer": {"d2e.objective", "d2e.debias", "d2e.distill"},
}


@pytest.mark.parametrize("model", bundled_models())
def test_a_models_methods_differ_from_its_d2e_training_in_what_their_names_say(model: str) -> None:
    d2e = bundled(f"{model}/d2e")
    assert d2e.model.lora is None
    assert d2e.d2e.views == ("original", "imagined", "refined")
    runs = Path(d2e.train.output_dir).parent
    for method, expected in METHODS.items():
        recipe = bundled(f"{model}/{method}")
        same = {"train.learning_rate"} if d2e.train.learning_rate == recipe.train.learning_rate else set()
        assert changed(d2e, recipe) == (expected - same) | {"train.output_dir"}, method
        assert recipe.train.output_dir == f"{runs}/{method}"


def changed(one: Recipe, other: Recipe) -> set[str]:
    """Keys that differ; an adapter is one."""
    before, after = (dict(flat(recipe.model_dump())) for recipe in (one, other))
    keys = {key for key in before.keys() | after.keys() if before.get(key, "-") != after.get(key, "-")}
    return {"model.lora" if key.startswith("model.lora") else key for key in keys}


@pytest.mark.parametrize("model", PAPER)
def test_the_papers_models_have_the_papers_hyper_parameters(model: str) -> None:
    recipe = bundled(f"{model}/d2e")
    train = recipe.train
    assert (train.learning_rate, train.batch_size, train.num_train_epochs, train.warmup_steps) == (1e-5, 64, 3, 0.1)
    assert (train.precision, recipe.d2e.alpha, recipe.decoding.alpha) == ("float16", 0.5, 0.5)
    assert accumulation_steps(recipe, processes=8) == 1, "as in section 4.3"


@pytest.mark.parametrize("model", MODELS)
def test_a_models_run_folder_has_its_name_and_its_batch_can_be_cut_for_every_launch_shape(model: str) -> None:
    train = bundled(f"{model}/d2e").train
    assert train.output_dir == (f"runs/paper/{model}/d2e" if model in PAPER else f"runs/{model}/d2e")
    for processes in (1, 8) if model in PAPER else (1, 8, 16):
        assert train.batch_size % (train.per_device_train_batch_size * processes) == 0, processes


def test_recipes_train_models_of_known_architectures_into_folders_of_their_own() -> None:
    every = [bundled(name) for name in bundled_recipes()]
    assert {recipe.model.name for recipe in every} == set(ARCHITECTURES)
    assert len({recipe.train.output_dir for recipe in every}) == len(every)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], str]:
    """What a dry run shows; recipes that the stand-in makes equal share one."""
    world = tmp_path_factory.mktemp("recipes")
    rows = [one.model_copy(update={"rejected": ["the stone"]}) for one in make_samples(4)]  # for preferences
    write_samples(rows, world / "train.parquet")

    @cache
    def model(kind: str) -> str:
        return str(save_tiny_model(world / kind, kind))

    @cache
    def run(content: str) -> str:
        lines: list[str] = []
        dry_run(Recipe.model_validate(json.loads(content)), lines.append)
        return "\n".join(lines)

    def stand_in(recipe: Recipe) -> str:
        recipe.model.name = model(ARCHITECTURES[recipe.model.name])
        recipe.data = DataSection(train=str(world / "train.parquet"), max_length=1000)
        train = recipe.train
        # What changes neither what is computed nor how goes, so that equal recipes are equal; micro-batches are small.
        recipe.train = TrainSection(
            output_dir=str(world / "run"),
            batch_size=2,
            per_device_train_batch_size=2,
            bf16=train.precision != "float16" and precision_for(recipe) == "bfloat16",
            packing=train.packing,
            gradient_checkpointing=train.gradient_checkpointing,
            compile_layers=train.compile_layers,
        )
        recipe.eval = EvalSection()
        return run(recipe.model_dump_json())

    return stand_in


# What a model and a method add to a recipe is independent, so each model with two methods, and each method with a
# decoder and an encoder-decoder, show all. That every recipe loads, other tests show.
DRY_RUNS = [
    name
    for name in bundled_recipes()
    if name.startswith(("smollm2-135m/", "t5-base-boxes/")) or name.endswith(("/d2e", "/d2e-lora"))
]


def test_dry_runs_meet_every_model_and_method() -> None:
    models, methods = (set(part) for part in zip(*(name.split("/") for name in DRY_RUNS), strict=True))
    assert models == set(bundled_models())
    assert methods == {name.partition("/")[2] for name in bundled_recipes()}


@pytest.mark.parametrize("name", DRY_RUNS)
def test_a_dry_run_works_on_a_stand_in_of_the_architecture(name: str, shown: Callable[[Recipe], str]) -> None:
    recipe = load_recipe(name)  # changed below
    views, quantised = recipe.d2e.views, recipe.model.quantization is not None
    without_bitsandbytes = quantised and importlib.util.find_spec("bitsandbytes") is None
    if without_bitsandbytes:
        recipe.model.quantization = None
    text = shown(recipe)
    expected = LAYOUTS.get(ARCHITECTURES[bundled(name).model.name], "shared_batch")
    assert f"packing: {expected}" in text
    for view in ("original", "imagined", "refined"):
        assert (f"  {view}: prompt " in text) is (view in views), view
    # Weights of 4 bits cannot be run without data, so their memory is not estimated, and that is said.
    assert ("not estimated: " if quantised and not without_bitsandbytes else "at the peak") in text
    assert "in all, without loading and saving" in text
    if without_bitsandbytes:
        pytest.skip("bitsandbytes is not installed: the rest of the recipe passed, with the adapter on whole weights")


def test_a_float16_recipe_is_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = bundled(f"{PAPER[0]}/d2e")
    for cuda in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda cuda=cuda: cuda)
        if cuda:
            assert precision_for(recipe) == "float16"
            continue
        with pytest.raises(UserError, match="fp16=true: float16 needs CUDA"):
            precision_for(recipe)

"""The bias model: its imagined view stays what it was before training, whatever the trained model becomes."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection, Packing, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.model.loading import load_model, load_tokenizer
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective import bias_model
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import BiasModel, FrozenCollator, numbered
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.command import call, output_of, refusal_of
from tests.factories import log_history, make_world, write_recipe
from tests.naive import encoded_rows, gradients_of, naive_sums, with_equal_views
from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer

LAYOUT = Layout("batched", "sdpa")
CONFIGS = {
    "d2e": D2ESection(bias_model="base"),
    "original-gradient": D2ESection(bias_model="base", view_gradients="original", alpha=1.2),
    "no-distill": D2ESection(bias_model="base", distill=False),
    "product": D2ESection(objective="product", bias_model="base", product_weight=0.6),
    "weighted": D2ESection(objective="weighted", bias_model="base", alpha_weight="jsd"),
    "reweight": D2ESection(objective="reweight", bias_model="base"),
}


def changed(model: Any) -> None:
    """What a step does to weights: something else to each."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def assert_step_equals_naive(model: Any, config: D2ESection, bias: Any, packing: Packing = "auto") -> None:
    """A step of a changed model equals one forward per view and sample, the imagined view from `bias` as it was."""
    rows, layout = with_equal_views(encoded_rows(config, 5), [1, 3], [4]), choose_layout(model, config, packing)
    frozen = BiasModel.of(config, model, layout, tiny_tokenizer())
    states = frozen.states(config, rows, batch_size=2)
    reference = copy.deepcopy(model)
    attach_objective(model, config, bias_head=frozen.head)
    collate = FrozenCollator(collator_for(layout, config, model.config), states)
    for one in (model, reference):
        changed(one)
    sums = model(**model_inputs(collate(numbered(rows))))
    expected = naive_sums(reference, rows, config, bias)
    for one in (sums, expected):
        one["loss"].backward()
    assert sums["loss"].item() == pytest.approx(expected["loss"].item(), rel=1e-5)
    theirs = gradients_of(reference)
    for name, gradient in gradients_of(model).items():
        if theirs[name].norm() > 1e-4:
            assert (gradient - theirs[name]).norm() <= 1e-4 * theirs[name].norm(), name


@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
@pytest.mark.parametrize(
    ("kind", "config"),
    # qwen2: the head is tied to the embeddings
    [*(("llama", config) for config in CONFIGS.values()), ("qwen2", CONFIGS["d2e"]), ("gemma3", CONFIGS["d2e"])],
    ids=[*CONFIGS, "qwen2", "gemma3"],
)
def test_base_is_the_model_before_training(kind: str, config: D2ESection, packing: Packing) -> None:
    model = tiny_model(kind, seed=3)
    assert_step_equals_naive(model, config, copy.deepcopy(model), packing)


@pytest.mark.parametrize("config", [CONFIGS["d2e"], CONFIGS["product"]], ids=["d2e", "product"])
def test_another_model_of_another_size_takes_the_imagined_view(tmp_path: Path, config: D2ESection) -> None:
    folder = save_tiny_model(tmp_path / "bias", kind="gemma3", seed=9)
    config = config.model_copy(update={"bias_model": str(folder)})
    assert_step_equals_naive(tiny_model("llama", seed=3), config, tiny_model("gemma3", seed=9))


@pytest.mark.parametrize("objective", ["product", "reweight"])
def test_an_adapter_is_the_bias_of_another_adapter_of_the_same_base(tmp_path: Path, objective: Any) -> None:
    base, options = save_tiny_model(tmp_path / "base", seed=3), LoraConfig(r=4, target_modules="all-linear")
    expert = get_peft_model(load_model(str(base)).model, options)
    changed(expert)
    expert.save_pretrained(tmp_path / "expert")
    load_tokenizer(str(base))[0].save_pretrained(tmp_path / "expert")
    config = D2ESection(objective=objective, bias_model=str(tmp_path / "expert"))
    assert_step_equals_naive(get_peft_model(load_model(str(base)).model, options), config, expert.eval())


def trainer_for(model: Any, config: D2ESection, folder: Path, rows: Any, held_out: Any = None) -> D2ETrainer:
    args = TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to="none", remove_unused_columns=False, disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    return D2ETrainer(model, D2EConfig.of(args, **config.model_dump()), train_dataset=rows, eval_dataset=held_out)


@pytest.mark.parametrize("kind", ["base", "base of an adapter", "another run"])
def test_training_subtracts_the_bias_model(tmp_path: Path, kind: str) -> None:
    config, model = D2ESection(bias_model="base", distill=False), tiny_model("llama", seed=3)
    bias = copy.deepcopy(model)
    if kind == "base of an adapter":
        options: Any = {"target_modules": "all-linear", "modules_to_save": ["lm_head"], "task_type": "CAUSAL_LM"}
        model = get_peft_model(model, LoraConfig(r=4, **options))
    elif kind == "another run":
        save_tiny_model(tmp_path / "bias", seed=9)
        config, bias = config.model_copy(update={"bias_model": str(tmp_path / "bias")}), tiny_model("llama", seed=9)
    rows, held_out = encoded_rows(config, 6), encoded_rows(config, 3)
    trainer = trainer_for(model, config, tmp_path / "run", datasets.Dataset.from_list(rows), held_out)
    trainer.train()
    found = trainer.evaluate()
    now = copy.deepcopy(trainer.model).eval()
    now = now.merge_and_unload() if kind == "base of an adapter" else now
    tokens = sum(len(row["answer"]) for row in held_out)
    with torch.no_grad():
        del now.forward  # the objective's
        expected, drifted = (naive_sums(now, held_out, config, other)["loss"] / tokens for other in (bias, now))
    assert found["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert abs(drifted - expected) > 0.01 * expected, "the model has not changed enough to tell"


def test_each_of_several_held_out_sets_has_its_own_states(tmp_path: Path) -> None:
    config = D2ESection(bias_model="base", distill=False)
    rows = encoded_rows(config, 6)
    sets, found = {"two": rows[:2], "four": rows[2:]}, list[dict[str, float]]()
    for number, held_out in enumerate((sets, *sets.values())):
        trainer = trainer_for(tiny_model("llama", seed=3), config, tmp_path / f"run-{number}", rows, held_out)
        trainer.train()
        found.append(trainer.evaluate())
    for name, alone in zip(sets, found[1:], strict=True):
        assert found[0][f"eval_{name}_loss"] == pytest.approx(alone["eval_loss"], rel=1e-5)


def test_a_resumed_run_subtracts_the_model_before_its_first_step(tmp_path: Path) -> None:
    overrides = ("d2e.bias_model=base", "train.save_steps=2", "train.batch_size=2")
    recipe = load_recipe(write_recipe(make_world(tmp_path, bench=1), tmp_path / "run", *overrides))
    run = train_recipe(recipe)
    straight = load_file(run / "model.safetensors")
    for left in (run / "model.safetensors", run / "trainer_state.json"):
        left.unlink()
    shutil.rmtree(run / "checkpoint-4")
    resumed = load_file(train_recipe(recipe, resume=True) / "model.safetensors")
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a training on questions only, in a world with 8 rows whose answers it has learnt."""
    world = make_world(tmp_path_factory.mktemp("world"), bench=0)
    once = ("train.batch_size=8", "train.per_device_train_batch_size=8", "train.learning_rate=1e-2")
    recipe = write_recipe(world, world / "expert", *once, "train.max_steps=40", "data.without_context=true")
    output_of("train", recipe, "d2e.objective=sft")
    return world / "expert"


@pytest.mark.parametrize("objective", ["reweight", "product"])
def test_a_run_on_questions_only_is_the_bias_of_another(expert: Path, tmp_path: Path, objective: str) -> None:
    options = (f"d2e.objective={objective}", f"d2e.bias_model={expert}", "train.max_steps=1", "train.batch_size=8")
    said = call("train", write_recipe(expert.parent, tmp_path / "run"), *options)
    assert (said.status, "warning" in said.err) == (0, False), said.err
    config = load_recipe(tmp_path / "run" / "recipe.yaml").d2e
    rows = encoded_rows(config, 8, load_prompt_set("default"))
    model, bias = tiny_model("llama"), load_model(str(expert)).model
    with torch.no_grad():
        expected, unknown = (naive_sums(model, rows, config, one) for one in (bias, model))
    log, tokens = log_history(tmp_path / "run")[0], sum(len(row["answer"]) for row in rows)
    assert log["loss"] == pytest.approx(expected["loss"].item() / tokens, rel=1e-4)
    assert log["bias_share"] == pytest.approx(expected["imagined_correct"].item() / tokens)
    assert expected["loss"] < 0.9 * unknown["loss"], "the expert does not know the answers"
    if objective == "reweight":
        assert log["sample_weight"] == pytest.approx(expected["sample_weight"].item() / tokens, rel=1e-4)


def test_a_bias_model_that_saw_the_contexts_is_warned_of(expert: Path, tmp_path: Path) -> None:
    recipe = write_recipe(expert.parent, tmp_path / "run", "d2e.objective=product", "train.max_steps=1")
    reader = write_recipe(expert.parent, tmp_path / "reader", "d2e.objective=sft", "train.max_steps=1")
    output_of("train", reader)
    for more in ([], ["--dry-run"]):
        said = call("train", recipe, f"d2e.bias_model={tmp_path / 'reader'}", *more)
        assert said.status == 0
        assert "was trained with the contexts, so it may not know the habit" in " ".join(said.err.split())


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["train", "dry run"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"d2e\.bias_model=.*: model '.*missing': no such folder"),
        ("unfinished", r"d2e\.bias_model=.*unfinished': the folder contains no model.*: checkpoint-2"),
        (
            "tokens",
            r"d2e\.bias_model=.*: has another tokenizer, so its log-prob.*tokenizer of model\.name",
        ),
        ("size", r"d2e\.bias_model=.*: has a vocabulary of 300 tokens, not 261"),
    ],
)
def test_an_unsuitable_bias_model_is_refused_before_anything_is_loaded(
    expert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str, more: list[str]
) -> None:
    folder = tmp_path / kind
    if kind == "unfinished":
        shutil.copytree(expert, folder / "checkpoint-2")
    elif kind != "missing":
        shutil.copytree(expert, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | ({"vocab_size": 300} if kind == "size" else {})))
        tokenizer = copy.deepcopy(tiny_tokenizer())
        tokenizer.add_tokens(["zyx"] * (kind == "tokens"))
        tokenizer.save_pretrained(folder)
    monkeypatch.setattr("d2e_sft.train.prepare.load_model", None)
    recipe = write_recipe(expert.parent, tmp_path / "run", "d2e.objective=reweight")
    said = refusal_of("train", recipe, f"d2e.bias_model={folder}", *more)
    assert re.search(message, " ".join(said.split())), said
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("*.safetensors"))


def test_rows_without_states_are_refused(tmp_path: Path) -> None:
    config = D2ESection(bias_model="base")
    trainer = trainer_for(tiny_model("llama"), config, tmp_path, encoded_rows(config, 4))
    with pytest.raises(UserError, match=r"eval_dataset: d2e\.bias_model=base is used before training"):
        trainer.evaluate(eval_dataset=encoded_rows(config, 2))


def test_unsupported_models_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path / "bias")
    base, other = D2ESection(bias_model="base"), D2ESection(bias_model=str(tmp_path / "bias"))
    model, tokenizer = tiny_model("llama"), copy.deepcopy(tiny_tokenizer())
    tokenizer.add_tokens(["zyx"])
    with pytest.raises(UserError, match=r"d2e\.bias_model=.*bias: has another tokenizer, so its log-prob"):
        BiasModel.of(other, model, LAYOUT, tokenizer)
    model.config.vocab_size = 7
    with pytest.raises(UserError, match=r"has a vocabulary of \d+ tokens, not 7"):
        BiasModel.of(other, model, LAYOUT)
    with pytest.raises(UserError, match=r"d2e\.bias_model=base: .*T5ForConditionalGeneration"):
        attach_objective(tiny_model("t5"), base)
    monkeypatch.setattr(bias_model, "is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(UserError, match=r"d2e\.bias_model=base: .*ZeRO-3 shards them.*\n.*--launch ddp or zero2"):
        BiasModel.of(base, model, LAYOUT)

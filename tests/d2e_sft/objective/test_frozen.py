"""A frozen view: what is kept before training is what the model would have said, whatever it has become since."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection, Packing, Recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective import frozen
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.frozen import FrozenCollator, numbered, states_before_training
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.naive import encoded_rows, gradients_of, naive_terms
from tests.tiny import make_samples, save_tiny_model, tiny_model

CONFIGS = {
    "frozen": D2ESection(objective="frozen"),
    "original-gradient": D2ESection(objective="frozen", view_gradients="original", alpha=1.2),
    "no-distill": D2ESection(objective="frozen", distill=False),
}


def changed(model: Any) -> None:
    """What a step does to weights: something else to each."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def naive_loss(model: Any, before: Any, rows: list[dict[str, Any]], config: D2ESection) -> torch.Tensor:
    """The imagined view from the model `before`, the others from the model; one forward a view and sample."""
    loss = torch.zeros(())
    for row in rows:
        answer, logits = torch.tensor(row["answer"]), {}
        for view in config.views:
            of = before if view == "imagined" else model
            logits[view] = of(input_ids=torch.tensor([row[view] + row["answer"]])).logits[0, -len(answer) - 1 : -1]
            if view == "imagined" or (view == "refined" and config.view_gradients == "original"):
                logits[view] = logits[view].detach()
        terms = naive_terms(logits, answer, torch.tensor(row["content"]), config)
        loss = loss + terms["ce"] + config.kl_weight * terms["kl"]
    return loss


def as_d2e(config: D2ESection) -> D2ESection:
    """The same formula by its own name, for the naive terms."""
    return D2ESection(**{**config.model_dump(), "objective": "d2e"})


@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3"])  # qwen2: the head is tied to the embeddings
def test_a_step_equals_three_forwards_of_which_one_is_of_the_model_before(
    kind: str, config: D2ESection, packing: Packing
) -> None:
    model, rows = tiny_model(kind, seed=3), encoded_rows(config, 5)
    before = copy.deepcopy(model)
    layout = choose_layout(model, config, packing)
    attach_objective(model, config)
    states = states_before_training(model, config, layout, rows, batch_size=2)
    collate = FrozenCollator(collator_for(layout, config, model.config), states)
    changed(model)
    reference = copy.deepcopy(before)
    reference.load_state_dict(model.state_dict())
    sums = model(**model_inputs(collate(numbered(rows))))
    sums["loss"].backward()
    expected = naive_loss(reference, before, rows, as_d2e(config))
    expected.backward()
    assert sums["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    theirs = gradients_of(reference)
    for name, gradient in gradients_of(model).items():
        if theirs[name].norm() > 1e-4:
            assert (gradient - theirs[name]).norm() <= 1e-4 * theirs[name].norm(), name


def trainer_for(model: Any, config: D2ESection, folder: Path, rows: Any, held_out: Any = None) -> D2ETrainer:
    args = TrainingArguments(
        output_dir=str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to="none", remove_unused_columns=False, disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    return D2ETrainer(model, args, d2e=config, train_dataset=rows, eval_dataset=held_out)


@pytest.mark.parametrize("adapter", [False, True])
def test_training_keeps_the_model_of_before_in_mind(tmp_path: Path, adapter: bool) -> None:
    config = D2ESection(objective="frozen", distill=False)
    rows, held_out = encoded_rows(config, 6), encoded_rows(config, 3)
    model = tiny_model("llama", seed=3)
    before = copy.deepcopy(model)
    if adapter:
        options: Any = {"target_modules": "all-linear", "modules_to_save": ["lm_head"], "task_type": "CAUSAL_LM"}
        model = get_peft_model(model, LoraConfig(r=4, **options))
    trainer = trainer_for(model, config, tmp_path, datasets.Dataset.from_list(rows), held_out)
    trainer.train()
    found = trainer.evaluate()
    now = copy.deepcopy(trainer.model).eval()
    plain = now.merge_and_unload() if adapter else now
    tokens = sum(len(row["answer"]) for row in held_out)
    with torch.no_grad():
        del plain.forward  # the objective's
        expected = naive_loss(plain, before, held_out, as_d2e(config)) / tokens
        drifted = naive_loss(plain, plain, held_out, as_d2e(config)) / tokens
    assert found["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert abs(drifted - expected) > 0.01 * expected, "the model has not changed enough to tell"


def test_a_resumed_run_keeps_the_model_from_before_its_first_step(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    write_samples(make_samples(8), tmp_path / "train.jsonl")
    recipe = Recipe.model_validate(
        {
            "model": {"name": str(tmp_path / "model")},
            "data": {"train": str(tmp_path / "train.jsonl"), "max_length": 1000},
            "d2e": {"objective": "frozen"},
            "train": {
                "output_dir": str(tmp_path / "run"), "batch_size": 2, "per_device_train_batch_size": 2, "max_steps": 4,
                "save_steps": 2, "learning_rate": 1e-2, "bf16": False,
            },
        }
    )  # fmt: skip
    run = train_recipe(recipe)
    straight = load_file(run / "model.safetensors")
    for left in (run / "model.safetensors", run / "trainer_state.json"):
        left.unlink()
    shutil.rmtree(run / "checkpoint-4")
    resumed = load_file(train_recipe(recipe, resume=True) / "model.safetensors")
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)


def test_rows_that_the_trainer_does_not_know_are_refused(tmp_path: Path) -> None:
    config = D2ESection(objective="frozen")
    trainer = trainer_for(tiny_model("llama"), config, tmp_path, encoded_rows(config, 4))
    with pytest.raises(ValueError, match="rows without the states of the model before training"):
        trainer.evaluate(eval_dataset=encoded_rows(config, 2))


def test_a_model_in_pieces_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frozen, "is_deepspeed_zero3_enabled", lambda: True)
    config = D2ESection(objective="frozen")
    with pytest.raises(UserError, match=r"d2e\.objective=frozen: .*under ZeRO-3 .*\n.*--launch ddp or zero2"):
        trainer_for(tiny_model("llama"), config, tmp_path, encoded_rows(config, 4))


def test_a_model_with_logits_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match=r"d2e\.objective=frozen: .*T5ForConditionalGeneration"):
        attach_objective(tiny_model("t5"), D2ESection(objective="frozen"))

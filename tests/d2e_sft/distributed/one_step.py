"""One training step of D2ETrainer on a tiny model, on the CPU: what one process and each of several run alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder, encode_samples
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.tiny import make_samples, tiny_model, tiny_tokenizer

OBJECTIVES = {"d2e": D2ESection(), "original-gradient": D2ESection(view_gradients="original")}


def samples(config: D2ESection) -> list[dict[str, Any]]:
    """Eight encoded samples whose answers differ in length."""
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), config.views)
    encoded = encode_samples(make_samples(8), encoder, max_length=1000)
    return [{**item.prompts, "answer": item.answer} for item in encoded.kept]


def trainer_for(config: D2ESection, folder: Path) -> D2ETrainer:
    """A trainer of the same tiny model in every process."""
    args = TrainingArguments(output_dir=str(folder), report_to="none", remove_unused_columns=False, use_cpu=True)
    return D2ETrainer(tiny_model(seed=3), D2EConfig.of(args, **config.model_dump()))


def take_step(trainer: D2ETrainer, rows: list[dict[str, Any]]) -> float:
    """Forward and backward on this process's rows; the loss, averaged over processes as gradients are."""
    batches, answer_tokens = trainer.get_batch_samples(iter([trainer.data_collator(rows)]), 1, torch.device("cpu"))
    loss = trainer.training_step(trainer.model, batches[0], answer_tokens)
    return float(trainer.accelerator.reduce(loss, reduction="mean"))


def decode(trainer: D2ETrainer, rows: list[dict[str, Any]]) -> list[list[int]]:
    """Debiased answers to two prompts, as between two steps of a training."""
    trainer.model.eval()
    answers = generate_debiased(
        trainer.model,
        [row["original"] for row in rows[:2]],
        [row["imagined"] for row in rows[:2]],
        DecodingConfig(max_new_tokens=5),
    )
    trainer.model.train()
    return answers

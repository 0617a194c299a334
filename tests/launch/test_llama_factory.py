"""LLaMA-Factory's configuration trains as our recipe of plain SFT does, on the dataset that the export writes."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.util.paths import bundled
from tests.command import output_of
from tests.tiny import make_sample

FILE = bundled("launch") / "llama-factory" / "sft.yaml"
GPUS = 8


def test_it_has_the_hyper_parameters_of_the_recipe() -> None:
    theirs, recipe = yaml.safe_load(FILE.read_text("utf-8")), load_recipe("qwen1.5-7b-chat/sft")
    ours = recipe.train
    assert theirs["model_name_or_path"] == recipe.model.name
    assert theirs["cutoff_len"] == recipe.data.max_length
    assert theirs["warmup_ratio"] == ours.warmup_steps
    batch = GPUS * theirs["per_device_train_batch_size"] * theirs["gradient_accumulation_steps"]
    assert batch == ours.batch_size == 64
    for key in ("learning_rate", "num_train_epochs", "lr_scheduler_type", "fp16", "save_steps", "save_total_limit"):
        assert theirs[key] == getattr(ours, key), key


def test_its_dataset_is_the_one_that_the_export_describes(tmp_path: Path) -> None:
    write_samples([make_sample(i) for i in range(2)], tmp_path / "train.jsonl")
    output_of("data", "export", tmp_path / "train.jsonl", "--format", "llamafactory", "--out", tmp_path / "out")
    described = json.loads((tmp_path / "out" / "dataset_info.json").read_text("utf-8"))
    theirs = yaml.safe_load(FILE.read_text("utf-8"))
    assert theirs["dataset"] in described
    line = next(line for line in FILE.read_text("utf-8").splitlines() if "data export" in line)
    assert line.endswith(f"LLaMA-Factory/{theirs['dataset_dir']}")

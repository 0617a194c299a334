"""An encoder-decoder model through the whole flow: plain-text prompts, training, resuming, adapters, evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_model
from tests.command import d2e, output_of, refusal_of
from tests.factories import losses, make_world, scores_of, write_recipe
from tests.tiny import make_sample, tiny_t5_tokenizer

VIEWS = ("original", "imagined", "refined")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny T5, training and test samples, and a recipe."""
    folder = make_world(tmp_path_factory.mktemp("t5"), train=16, bench=4, kinds={"model": "t5"})
    write_recipe(folder, folder / "run", "train.batch_size=8", "eval.max_new_tokens=4")
    return folder


def test_prompts_without_a_template_are_plain_text_that_ends_as_the_tokenizer_ends_it() -> None:
    tokenizer, prompts, sample = tiny_t5_tokenizer(), load_prompt_set("default"), make_sample(2)
    encoded = ViewEncoder(tokenizer, prompts, VIEWS, encoder_decoder=True).encode(sample)
    system, user = (message["content"] for message in prompts.messages(sample, "original"))
    assert tokenizer.decode(encoded.prompts["original"]) == f"{system}\n\n{user}<|end|>"
    assert tokenizer.decode(encoded.answer) == f"{prompts.response(sample)}<|end|>"
    assert sample.context not in tokenizer.decode(encoded.prompts["imagined"])


def test_a_context_that_is_cut_leaves_the_prompts_end() -> None:
    encoder = ViewEncoder(tiny_t5_tokenizer(), load_prompt_set("default"), VIEWS, encoder_decoder=True)
    sample = make_sample(2)
    whole = encoder.prompt_ids(sample, "original")
    cut = encoder.prompt_ids(sample, "original", len(whole) - 10)
    assert len(cut) <= len(whole) - 10
    assert cut[-1] == 1
    assert cut[-30:] == whole[-30:]


def test_a_run_lowers_the_loss_and_is_evaluated_debiased(world: Path) -> None:
    assert "packing: encoder_decoder" in output_of("train", world / "run.yaml", "train.learning_rate=1e-2")
    history = losses(world / "run")
    assert history[-1] < 0.95 * history[0]
    assert type(load_model(str(world / "run")).model).__name__ == "T5ForConditionalGeneration"
    assert d2e("eval", world / "run", "--bench", world / "bench") == 0
    scores = scores_of(world / "run")
    assert scores["alpha"] == 0.5
    assert scores["overall"]["n"] == 4


def test_boxes_are_trained_and_asked_with_a_mask_and_decoded_with_beams(world: Path, tmp_path: Path) -> None:
    small = ("boxes.boxes=2", "boxes.operations=1", "boxes.train_samples=8", "boxes.test_samples=1")
    assert d2e("data", "build", "--datasets", "boxes", "--out", tmp_path / "rows", "boxes.form=t5", *small) == 0
    rows, run = tmp_path / "rows" / "train.parquet", tmp_path / "run"
    assert d2e("train", world / "run.yaml", "d2e.objective=sft", f"data.train={rows}", f"train.output_dir={run}") == 0
    files = tmp_path / "files"
    assert d2e("data", "boxes", files, "--format", "t5", "--plain", "--scenarios", 3) == 0
    asked = ("--data", files, "--set", "prompt=masked", "--num-beams", 3, "--max-samples", 1)
    assert "accuracy" in output_of("eval", run, "--bench", "boxes", *asked)
    scores = json.loads((run / "eval" / "boxes-prompt=masked" / "scores.json").read_text())
    assert (scores["num_beams"], scores["questions"]) == (3, 7)
    refused = refusal_of("eval", run, "--bench", "boxes", *asked[:-4], "--num-beams", 2, "--max-samples", 1)
    assert "--num-beams: 3 → 2" in refused


def test_resuming_ends_where_the_whole_run_does(world: Path, tmp_path: Path) -> None:
    common = ["train.save_steps=2"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert d2e("train", world / "run.yaml", *common, f"train.output_dir={whole}") == 0
    part.mkdir()
    for name in ("checkpoint-2", "recipe.yaml", "data.json"):
        (whole / name).rename(part / name)
    assert d2e("train", world / "run.yaml", *common, f"train.output_dir={part}", "--resume") == 0
    first, second = (load_file(run / "model.safetensors") for run in (whole, part))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("options", [[], ["train.gradient_checkpointing=true"]], ids=["plain", "checkpointed"])
def test_an_adapter_is_trained_and_merged(world: Path, tmp_path: Path, options: list[str]) -> None:
    run = tmp_path / "run"
    lora = ["model.lora.r=4", "model.lora.target_modules=[q, v]", f"train.output_dir={run}"]
    assert d2e("train", world / "run.yaml", *lora, *options) == 0
    assert json.loads((run / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"
    before, after = (_weights(folder) for folder in (world / "model", run))
    changed = {name for name, weights in before.items() if not torch.equal(after[name], weights)}
    assert changed == {name for name in before if name.endswith((".q.weight", ".v.weight"))}


def _weights(folder: Path) -> dict[str, Any]:
    return dict(load_model(str(folder)).model.named_parameters())

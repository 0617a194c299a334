"""The losses of a short training against numbers stored beside this file, so that a change of numbers is seen at once.

They were recorded on a CPU in float32; rewritten with `python -m tests.d2e_sft.train.test_trajectory`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.naive import encoded_rows
from tests.tiny import tiny_model

STORED = Path(__file__).with_name("trajectory.json")
# nats a token. Another number of threads changes these numbers by 5e-7, α = 0.51 instead of 0.5 by 1e-2.
TOLERANCE = 2e-6
OBJECTIVES = {"d2e": D2ESection(), "sft": D2ESection(debias=False, distill=False)}


def losses(folder: Path, d2e: D2ESection, steps: int = 20) -> dict[str, list[float]]:
    """`loss`, `ce` and `kl` (nats a token) of each step, unrounded."""
    args = D2EConfig(
        str(folder), max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-3, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, seed=42, logging_steps=1,
        bf16=False, disable_tqdm=True, use_cpu=True, **d2e.model_dump(),
    )  # fmt: skip
    trainer = D2ETrainer(tiny_model("llama"), args, train_dataset=encoded_rows(d2e, 8, load_prompt_set("default")))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {name: [entry[name] for entry in logged] for name in ("loss", "ce", "kl")}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_the_stored_ones(tmp_path: Path, name: str) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[name]
    found = losses(tmp_path, OBJECTIVES[name])
    for part, values in stored.items():
        assert found[part] == pytest.approx(values, rel=0, abs=TOLERANCE), part


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: losses(Path(folder), d2e) for name, d2e in OBJECTIVES.items()}
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

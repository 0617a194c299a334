"""Run as a program: train a recipe for real, and print by how many bytes the process grew at most.

From just before the model is loaded to the end of the last step. A tiny model is trained before, so that the libraries
which training loads on its way (some hundred MiB) are not counted as the model's. The peak is the kernel's own record
of this process; `ru_maxrss` would take over that of the process that started it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.train import run as train
from d2e_sft.train.trainer import D2ETrainer
from tests.tiny import save_tiny_model


def memory(field: str) -> int:
    """`VmRSS`, or `VmHWM`, its peak, of this process, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(f"{field}:"))


def train_tiny(recipe: Recipe) -> None:
    """The same training of a tiny model, one step."""
    with tempfile.TemporaryDirectory() as folder:
        tiny = recipe.model_copy(deep=True)
        tiny.model.name = str(save_tiny_model(Path(folder) / "model"))
        tiny.data.max_length = 10_000  # its tokens are bytes
        tiny.train.output_dir, tiny.train.max_steps = f"{folder}/run", 1
        train.train_recipe(tiny)


def main() -> None:
    """Train the recipe given in the arguments."""
    recipe = load_recipe(sys.argv[1], sys.argv[2:])
    train_tiny(recipe)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = memory("VmRSS")
    save = D2ETrainer.save_model

    def save_model(self: D2ETrainer, *arguments: Any, **options: Any) -> Any:
        print(f"grew by {memory('VmHWM') - before} bytes", flush=True)
        return save(self, *arguments, **options)

    with patch.object(D2ETrainer, "save_model", save_model):
        train.train_recipe(recipe)


if __name__ == "__main__":
    main()

"""One process of launched trainings: trains as `d2e train` does and writes down what it ran under.

Called as `worker.py RESULTS RECIPE TRAINING...`; a training is a JSON list of overrides, and `--resume=CHECKPOINT`
to continue another run from there, or `--deepspeed=FILE` to train by a script's D2ETrainer. They run one after the
other, since importing the packages takes longer than each.
Leaves RESULTS/rank-N.json with a record a training, written before the interpreter exits, so that what happens then
cannot be taken for a training's result.

accelerate ignores FSDP2 without an accelerator. Launched with it on CPUs, these processes tell accelerate that they
are GPUs, so it shards the model over gloo: its wrapping, gathering, clipping and checkpoints are those of GPUs.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType, PartialState
from torch.distributed.tensor import DTensor

from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.objective import attach
from d2e_sft.train import trainer
from d2e_sft.train.config import KEYS, D2EConfig
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util import distributed


class WitnessedTrainer(D2ETrainer):
    """Keeps a record of what training ran under, taken while the engine is still there."""

    witnessed: dict[str, Any]

    def train(self, *args: Any, **kwargs: Any) -> Any:
        outcome = super().train(*args, **kwargs)
        type(self).witnessed = {
            "world_size": torch.distributed.get_world_size(),
            "backend": torch.distributed.get_backend(),
            "distributed_type": self.accelerator.distributed_type.value,
            "engine": type(self.model_wrapped).__name__,
            "logs": [entry for entry in self.state.log_history if "loss" in entry],
            **_partitions(self.model_wrapped),
        }
        return outcome


def _partitions(engine: Any) -> dict[str, Any]:
    """Sizes of this process's shares: of the optimiser's float32 weights, and of each parameter under ZeRO-3."""
    if not hasattr(engine, "zero_optimization_stage"):
        shards = {name: p for name, p in engine.named_parameters() if isinstance(p, DTensor)}
        return {
            "parameters": {name: {"whole": p.numel(), "share": p.to_local().numel()} for name, p in shards.items()}
        }
    stage = engine.zero_optimization_stage()
    optimizer = engine.optimizer
    shares = optimizer.fp32_partitioned_groups_flat if stage == 3 else optimizer.single_partition_of_fp32_groups
    trained = [p for p in engine.module.parameters() if p.requires_grad]
    found: dict[str, Any] = {
        "zero_stage": stage,
        "trained": sum(getattr(p, "ds_numel", p.numel()) for p in trained),
        "optimizer_share": sum(share.numel() for share in shares),
    }
    if stage == 3:
        found["parameters"] = {
            name: {"whole": p.ds_numel, "share": p.ds_tensor.numel(), "held": p.numel()}
            for name, p in engine.module.named_parameters()
        }
    return found


def _copy_start(checkpoint: Path, run: Path) -> None:
    """Leave in `run` what the run of the checkpoint would have left there, had it been killed afterwards."""
    if torch.distributed.get_rank() == 0:
        shutil.copytree(checkpoint, run / checkpoint.name)
        for name in ("data.json", "recipe.yaml", "_held_out_predictions.jsonl"):
            shutil.copy(checkpoint.parent / name, run)
    torch.distributed.barrier()


def shard_on_cpus() -> None:
    """Let accelerate shard by FSDP2 on CPUs, and cut the loss into chunks, whose number differs between processes."""
    begin, asked_for = PartialState.__init__, distributed.asked_for

    def __init__(self: PartialState, *args: Any, **options: Any) -> None:  # noqa: N807
        begin(self, *args, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = __init__  # type: ignore[method-assign]
    distributed.asked_for = lambda engine: engine != "FSDP" and asked_for(engine)
    attach.CHUNK_ELEMENTS = 5 * 3200


def train_as_a_script(recipe: Recipe, deepspeed: str) -> None:
    """Train by D2ETrainer with the values of a recipe and a file of DeepSpeed, without accelerate's settings."""
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        del os.environ[name]
    values = {name: getattr(getattr(recipe, section), key) for name, (section, key) in KEYS.items()}
    rows = {"train_dataset": recipe.data.train, "eval_dataset": recipe.data.dev}
    made = WitnessedTrainer(recipe.model.name, D2EConfig(**values, deepspeed=deepspeed), **rows)
    made.train()
    made.save_model()


def main() -> None:
    if distributed.asked_for("FSDP") and not torch.accelerator.is_available():
        shard_on_cpus()
    results, recipe, *trainings = sys.argv[1:]
    trainer.D2ETrainer = WitnessedTrainer  # type: ignore[misc]
    records = []
    for arguments in map(json.loads, trainings):
        checkpoint = next((Path(one[9:]) for one in arguments if one.startswith("--resume=")), None)
        deepspeed = next((one[12:] for one in arguments if one.startswith("--deepspeed=")), None)
        loaded = load_recipe(recipe, [argument for argument in arguments if not argument.startswith("--")])
        if checkpoint is not None:
            _copy_start(checkpoint, Path(loaded.train.output_dir))
        if deepspeed is not None:
            train_as_a_script(loaded, deepspeed)
        else:
            train_recipe(loaded, resume=checkpoint is not None)
        records.append(WitnessedTrainer.witnessed)
    rank = torch.distributed.get_rank()
    Path(results, f"rank-{rank}.json").write_text(json.dumps(records))
    torch.distributed.barrier()  # so that neither exits while the other writes


if __name__ == "__main__":
    main()

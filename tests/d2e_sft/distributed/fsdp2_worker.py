"""One of two processes that take one training step on a model sharded by torch's fully_shard, over gloo.

Called by torch's launcher as `fsdp2_worker.py RESULTS`; leaves RESULTS/rank-N.pt, one entry for each objective.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from tests.d2e_sft.distributed.one_step import OBJECTIVES, decode, samples, take_step, trainer_for


def shard(model: Any) -> None:
    """Shard every decoder layer, and what is left in the whole: as accelerate's TRANSFORMER_BASED_WRAP does."""
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> None:
    torch.distributed.init_process_group("gloo")
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found: dict[str, Any] = {"world_size": world_size}
    for name, config in OBJECTIVES.items():
        trainer = trainer_for(config, Path(sys.argv[1]) / name)
        shard(trainer.model)
        answers = decode(trainer, samples(config))
        loss = take_step(trainer, samples(config)[rank::world_size])
        parameters = dict(trainer.model.named_parameters())
        found[name] = {
            "answers": answers,
            "loss": loss,
            "sharded": isinstance(trainer.model, FSDPModule),
            "processes": trainer.accelerator.num_processes,
            "gradients": {key: p.grad.full_tensor() for key, p in parameters.items()},
            "shares": {
                key: (p.numel(), p.to_local().numel()) if isinstance(p, DTensor) else None
                for key, p in parameters.items()
            },
        }
    torch.save(found, Path(sys.argv[1]) / f"rank-{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

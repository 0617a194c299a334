"""FSDP2: two processes with a sharded model decode as one process, and a step has its loss and its gradients.

Here torch's own fully_shard shards the model. test_engines.py has whole trainings with accelerate's wrapping.
The launched processes run this file, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.command import launch
from tests.naive import encoded_rows
from tests.tiny import tiny_model

OBJECTIVES = {"d2e": D2ESection(), "original-gradient": D2ESection(view_gradients="original")}


def decode_and_step(
    config: D2ESection, folder: Path, rank: int = 0, processes: int = 1
) -> tuple[D2ETrainer, list[list[int]], float]:
    """Decode two prompts debiased, and take a step on this process's share of eight rows.

    Returns:
        the trainer, the answers and the loss, averaged over processes as gradients are.
    """
    args = TrainingArguments(output_dir=str(folder), report_to="none", remove_unused_columns=False, use_cpu=True)
    trainer = D2ETrainer(tiny_model(seed=3), D2EConfig.of(args, **config.model_dump()))
    if processes > 1:
        shard(trainer.model)
    rows = encoded_rows(config, 8)
    trainer.model.eval()
    prompts = ([row[view] for row in rows[:2]] for view in ("original", "imagined"))
    answers = generate_debiased(trainer.model, *prompts, DecodingConfig(max_new_tokens=5))
    trainer.model.train()
    batch = trainer.data_collator(rows[rank::processes])
    batches, answer_tokens = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
    loss = trainer.training_step(trainer.model, batches[0], answer_tokens)
    return trainer, answers, float(trainer.accelerator.reduce(loss, reduction="mean"))


def shard(model: Any) -> None:
    """Shard every decoder layer, and what is left in the whole: as accelerate's TRANSFORMER_BASED_WRAP does."""
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for module in model.modules():
        if type(module).__name__ in model._no_split_modules:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def run_process(folder: Path) -> None:
    """Decode and step as one of the processes; leave `rank-N.pt`, with one entry for each objective."""
    torch.distributed.init_process_group("gloo")
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found: dict[str, Any] = {"world_size": processes}
    for name, config in OBJECTIVES.items():
        trainer, answers, loss = decode_and_step(config, folder / name, rank, processes)
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
    torch.save(found, folder / f"rank-{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("fsdp2")
    ended = launch(folder, "torch.distributed.run:main", "--standalone", "--nproc-per-node", "2", __file__, folder)
    assert ended.status == 0, ended.printed[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_parameter_lies_in_halves(ranks: list[dict[str, Any]], objective: str) -> None:
    for found in ranks:
        assert found["world_size"] == found[objective]["processes"] == 2
        assert found[objective]["sharded"]
    first, second = (found[objective]["shares"] for found in ranks)
    for name, (whole, share) in first.items():
        assert share < whole, name
        assert share + second[name][1] == whole, name


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sharded_weights_decode_and_step_as_those_of_one_process(
    ranks: list[dict[str, Any]], objective: str, tmp_path: Path
) -> None:
    trainer, answers, loss = decode_and_step(OBJECTIVES[objective], tmp_path)
    assert all(found[objective]["answers"] == answers for found in ranks)
    for found in ranks:
        assert found[objective]["loss"] == pytest.approx(loss, rel=1e-5)
        for name, parameter in trainer.model.named_parameters():
            # Sums are taken in another order: an error of 1e-7 of the largest gradient, where a wrong divisor is a
            # factor.
            scale = parameter.grad.abs().max().item()
            assert scale > 0, name
            torch.testing.assert_close(
                found[objective]["gradients"][name], parameter.grad, rtol=1e-4, atol=1e-5 * scale,
                msg=lambda text, name=name: f"{name}: {text}",
            )  # fmt: skip


if __name__ == "__main__":
    run_process(Path(sys.argv[1]))

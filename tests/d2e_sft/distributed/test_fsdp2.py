"""FSDP2: two processes with a sharded model decode as one process, and a step has its loss and its gradients.

accelerate ignores FSDP2 without CUDA, so the model is sharded by torch's own fully_shard here; through accelerate it
is tested in test_engines.py, where there are two GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.command import launch
from tests.d2e_sft.distributed.one_step import OBJECTIVES, decode, samples, take_step, trainer_for


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("fsdp2")
    worker = Path(__file__).with_name("fsdp2_worker.py")
    ended = launch(folder, "torch.distributed.run:main", "--standalone", "--nproc-per-node", "2", worker, folder)
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
    config = OBJECTIVES[objective]
    trainer = trainer_for(config, tmp_path)
    answers = decode(trainer, samples(config))
    assert all(found[objective]["answers"] == answers for found in ranks)
    loss = take_step(trainer, samples(config))
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

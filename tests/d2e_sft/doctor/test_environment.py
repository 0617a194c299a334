"""Launchers, and Slurm."""

from __future__ import annotations

import shutil

import pytest

from d2e_sft.doctor import environment as doctor
from d2e_sft.doctor.environment import slurm
from d2e_sft.train import launch
from tests.d2e_sft.doctor.conftest import named


@pytest.mark.parametrize(("count", "fsdp2"), [(0, "warn"), (8, "ok")])
def test_each_launcher_is_tried(count: int, fsdp2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (launch, doctor):
        monkeypatch.setattr(module, "accelerators", lambda: count)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = list(doctor.check_launchers())
    assert [finding.name for finding in found if finding.name in launch.launchers()] == launch.launchers()
    assert named(found, "ddp").status == "ok"
    assert named(found, "fsdp2").status == fsdp2
    assert named(found, "C++ compiler").status == named(found, "zero3-offload").status == "warn"


@pytest.mark.parametrize(
    ("environment", "found_devices", "status", "said"),
    [
        ({}, 0, "ok", "not on a Slurm cluster"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 4, "ok", "job 7, 1 node, 4 GPUs on this one"),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "4"}, 0, "warn", "but torch finds 0"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, 0, "warn", "2 nodes, no GPUs"),
    ],
)
def test_a_slurm_job_is_compared_with_what_torch_finds(
    environment: dict[str, str], found_devices: int, status: str, said: str
) -> None:
    finding = named(slurm(environment, found_devices, can_submit=False), "slurm")
    assert finding.status == status
    assert said in finding.value


def test_a_login_node_and_a_requeued_job_are_reported() -> None:
    assert "sbatch launch/slurm/train.sbatch" in next(slurm({}, 0, can_submit=True)).value
    environment = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1", "SLURM_RESTART_COUNT": "2"}
    assert named(slurm(environment, 1, can_submit=True), "requeued").value == "2 times so far"
